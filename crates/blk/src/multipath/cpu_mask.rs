// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Masks of CPUs as text, in the kernel's form. Source: lib/bitmap-str.c (`bitmap_parse`, `%*pb`).

use crate::id::MAX_CPUS;

/// Returns the CPUs of a mask as the kernel reads it: hexadecimal, groups of up to 8 digits separated by `,`. `None` if the text
/// is not a mask, or names a CPU number of [`MAX_CPUS`] or above.
pub fn parse_cpu_mask(text: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for (group, digits) in text.rsplit(',').enumerate() {
        let valid = !digits.is_empty() && digits.len() <= 8 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if !valid || group >= MAX_CPUS as usize / 32 {
            return None;
        }
        let bits = u32::from_str_radix(digits, 16).ok()?;
        cpus.extend((0..32).filter(|b| bits >> b & 1 == 1).map(|b| (group * 32) as u16 + b));
    }
    Some(cpus)
}

/// Returns the mask of CPUs as the kernel prints it.
pub(super) fn format_cpu_mask(cpus: &[u16]) -> String {
    let groups = cpus.iter().map(|c| usize::from(*c) / 32 + 1).max().unwrap_or(1);
    let mut bits = vec![0u32; groups];
    cpus.iter().for_each(|c| bits[usize::from(*c) / 32] |= 1 << (c % 32));
    let parts: Vec<_> = bits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, b)| if i == 0 { format!("{b:x}") } else { format!("{b:08x}") })
        .collect();
    parts.join(",")
}
