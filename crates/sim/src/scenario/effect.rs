// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which settings have an effect on a disk at all. Module parameters affect some drivers and not others.
//!
//! Source: drivers/scsi/scsi.c of Linux 3.17 to 4.20 (`scsi_mod.use_blk_mq`), drivers/md/dm-rq.c of 4.1 to 4.19
//! (`dm_mod.use_blk_mq`); drivers/mmc/core/queue.c.

use super::file::Attach;

/// The effect of a module parameter on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sets this setting of the block layer to this value.
    Sets(&'static str, &'static str),
    /// No effect, with the reason.
    None(String),
}

/// Returns the effect of a module parameter with this value on a disk that is attached in this way. Returns `None` if
/// `name` is a setting of the block layer instead of a module parameter.
pub fn of(name: &str, value: &str, attach: Attach) -> Option<Effect> {
    let on = matches!(value, "1" | "Y" | "y" | "true");
    let mode = || Effect::Sets("mode", if on { "mq" } else { "sq" });
    match name {
        "scsi_mod.use_blk_mq" => Some(match attach {
            Attach::Scsi => mode(),
            Attach::Mmc => Effect::None("no effect: not a SCSI disk (eMMC has a driver of its own, mmc_block)".into()),
            Attach::Direct | Attach::Model => {
                Effect::None("no effect: not a SCSI disk (its driver has hardware queues of its own)".into())
            }
        }),
        "dm_mod.use_blk_mq" => Some(match attach {
            // Request-based device mapper over SCSI paths; the paths' mode has to be the same.
            Attach::Scsi => mode(),
            _ => Effect::None("no effect: there is no request-based device mapper over this disk".into()),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scsi_mod_acts_on_scsi_disks_alone() {
        assert_eq!(of("scsi_mod.use_blk_mq", "1", Attach::Scsi), Some(Effect::Sets("mode", "mq")));
        assert_eq!(of("scsi_mod.use_blk_mq", "N", Attach::Scsi), Some(Effect::Sets("mode", "sq")));
        for attach in [Attach::Mmc, Attach::Direct] {
            let Some(Effect::None(why)) = of("scsi_mod.use_blk_mq", "1", attach) else { panic!("{attach:?}") };
            assert!(why.starts_with("no effect: not a SCSI disk"), "{why}");
        }
        assert_eq!(of("scheduler", "none", Attach::Scsi), None);
    }
}
