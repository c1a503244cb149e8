// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of k2 one by one.
