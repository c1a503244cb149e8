// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq as a whole, through the trait.
