//! CPU map.
