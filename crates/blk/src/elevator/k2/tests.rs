// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of k2 one by one, and properties under random use. The controller has a file of its own, with disks to control.

use super::*;

mod disks;
