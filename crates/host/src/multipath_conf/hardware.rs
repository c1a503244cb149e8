// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hardware table: options of known arrays, by vendor and product of INQUIRY.
//!
//! Guarantees: the values are those of multipath-tools 0.14.3. That version names no handlers, because the kernel attaches them by itself;
//! here the entries name them, as in 0.9. Entries for NVMe and DASD are left out, because no path has these protocols. So are
//! `product_blacklist`, because management units are not configured as disks, and options such as `max_sectors_kb` that have no
//! effect here. Order matters: of several entries that match, the last takes precedence. Does not do: apply the entries; `resolve` does.
//! Source: multipath-tools, libmultipath/hwtable.c (facts only).

use super::{Block, Device, Ere, Setting, options};
use std::sync::{Arc, LazyLock};

/// Option names and values.
type Values = &'static [(&'static str, &'static str)];

/// An entry: expressions for vendor and product, the values of its kind, and its own.
type Entry = (&'static str, &'static str, Values, Values);

const MULTIBUS: Values = &[("path_grouping_policy", "multibus")];
const BY_PRIO: Values = &[("path_grouping_policy", "group_by_prio"), ("failback", "immediate")];
const ALUA: Values = &[("path_grouping_policy", "group_by_prio"), ("failback", "immediate"), ("prio", "alua")];
/// The array needs the handler, too.
const HANDLER: Values = &[
    ("path_grouping_policy", "group_by_prio"),
    ("failback", "immediate"),
    ("prio", "alua"),
    ("hardware_handler", "1 alua"),
];
/// Arrays of LSI's family (Engenio), now NetApp's E-Series.
const RDAC: Values = &[
    ("path_grouping_policy", "group_by_prio"),
    ("path_checker", "rdac"),
    ("features", "2 pg_init_retries 50"),
    ("hardware_handler", "1 rdac"),
    ("prio", "rdac"),
    ("failback", "immediate"),
    ("no_path_retry", "30"),
];
/// Controllers of HP and Compaq with old firmware.
const HP_SW: Values = &[
    ("path_grouping_policy", "group_by_prio"),
    ("path_checker", "hp_sw"),
    ("hardware_handler", "1 hp_sw"),
    ("prio", "hp_sw"),
];
const SERIAL: Values = &[("path_grouping_policy", "group_by_serial")];

const RETRY_5: Values = &[("no_path_retry", "5")];
const RETRY_6: Values = &[("no_path_retry", "6")];
const RETRY_10: Values = &[("no_path_retry", "10")];
const RETRY_12: Values = &[("no_path_retry", "12")];
const RETRY_15: Values = &[("no_path_retry", "15")];
const RETRY_18: Values = &[("no_path_retry", "18")];
const RETRY_24: Values = &[("no_path_retry", "24")];
const RETRY_30: Values = &[("no_path_retry", "30")];
const RETRY_60: Values = &[("no_path_retry", "60")];
const QUEUE: Values = &[("no_path_retry", "queue")];

const ENTRIES: &[Entry] = &[
    ("APPLE", "Xserve RAID", MULTIBUS, &[]),
    // HPE
    ("3PARdata", "VV", HANDLER, &[("no_path_retry", "18"), ("fast_io_fail_tmo", "10"), ("dev_loss_tmo", "infinity")]),
    ("DEC", "HSG80", HP_SW, QUEUE),
    ("HP", "A6189A", MULTIBUS, RETRY_12),
    ("(COMPAQ|HP)", "(MSA|HSV)1[01]0", HP_SW, RETRY_12),
    ("(COMPAQ|HP)", "MSA VOLUME", ALUA, RETRY_12),
    ("(COMPAQ|HP)", "(HSV1[01]1|HSV2[01]0|HSV3[046]0|HSV4[05]0)", ALUA, RETRY_12),
    ("HP", "(MSA2[02]12fc|MSA2012i)", MULTIBUS, RETRY_18),
    ("HP", "(MSA2012sa|MSA23(12|24)(fc|i|sa)|MSA2000s VOLUME)", ALUA, RETRY_18),
    ("(HP|HPE)", "MSA [12]0[4567]0 (SAN|SAS|FC|iSCSI)", ALUA, RETRY_18),
    ("HP", "(HSVX700|HSVX740)", HANDLER, RETRY_12),
    ("HP", "LOGICAL VOLUME", MULTIBUS, RETRY_12),
    ("HP", "(P2000 G3 FC|P2000G3 FC/iSCSI|P2000 G3 SAS|P2000 G3 iSCSI)", ALUA, RETRY_18),
    ("LEFTHAND", "(P4000|iSCSIDisk|FCDISK)", ALUA, RETRY_18),
    ("Nimble", "Server", HANDLER, QUEUE),
    // SGI and DataDirect Networks
    ("SGI", "TP9100", MULTIBUS, &[]),
    ("SGI", "TP9[3457]00", RDAC, &[]),
    ("SGI", "IS", RDAC, &[]),
    ("SGI", "^DD[46]A-", ALUA, RETRY_30),
    ("DDN", "SAN DataDirector", MULTIBUS, &[]),
    ("DDN", "^EF3010", MULTIBUS, RETRY_30),
    ("DDN", "^(EF3015|S2A|SFA)", ALUA, RETRY_30),
    ("NEXENTA", "COMSTAR", SERIAL, RETRY_30),
    ("TEGILE", "(ZEBI-(FC|ISCSI)|INTELLIFLASH)", HANDLER, RETRY_10),
    // Dell EMC
    ("EMC", "SYMMETRIX", MULTIBUS, RETRY_6),
    (
        "^DGC",
        "^(RAID|DISK|VRAID)",
        BY_PRIO,
        &[
            ("path_checker", "emc_clariion"),
            ("hardware_handler", "1 emc"),
            ("prio", "emc"),
            ("no_path_retry", "60"),
            ("detect_checker", "no"),
        ],
    ),
    ("EMC", "Invista", MULTIBUS, RETRY_5),
    ("XtremIO", "XtremApp", MULTIBUS, &[]),
    ("COMPELNT", "Compellent Vol", BY_PRIO, QUEUE),
    ("DELL", "^MD3", RDAC, &[]),
    ("DellEMC", "PowerStore", HANDLER, &[("no_path_retry", "3"), ("fast_io_fail_tmo", "15")]),
    ("DellEMC", "^ME", HANDLER, &[]),
    ("EQLOGIC", "100E-00", MULTIBUS, RETRY_30),
    // Fujitsu
    ("FSC", "CentricStor", SERIAL, &[]),
    ("FUJITSU", "ETERNUS_DX(H|L|M|400|8000)", ALUA, RETRY_10),
    ("(EUROLOGC|EuroLogc)", "FC2502", MULTIBUS, &[]),
    ("FUJITSU", "E[234]000", ALUA, RETRY_10),
    ("FUJITSU", "E[68]000", MULTIBUS, RETRY_10),
    ("FUJITSU", "ETERNUS_AHB", RDAC, &[]),
    // Hitachi
    ("(HITACHI|HP|HPE)", "^OPEN-", BY_PRIO, RETRY_10),
    ("HITACHI", "^DF", BY_PRIO, &[("prio", "hds"), ("no_path_retry", "queue")]),
    ("HITACHI", "^DF600F", MULTIBUS, &[]),
    ("HITACHI", "Hi-SDS", ALUA, &[("no_path_retry", "6"), ("path_checker", "directio"), ("detect_checker", "no")]),
    // IBM
    ("IBM", "ProFibre 4000R", MULTIBUS, &[]),
    ("IBM", "^1722-600", RDAC, &[]),
    ("IBM", "^1724", RDAC, &[]),
    ("IBM", "^1726", RDAC, &[]),
    ("IBM", "^1742", RDAC, &[]),
    ("IBM", "^1746", RDAC, &[]),
    ("IBM", "^1813", RDAC, &[]),
    ("IBM", "^1814", RDAC, &[]),
    ("IBM", "^1815", RDAC, &[]),
    ("IBM", "^1818", RDAC, &[]),
    ("IBM", "^3526", RDAC, &[]),
    ("IBM", "^(3542|3552)", RDAC, &[]),
    ("IBM", "^2105", MULTIBUS, QUEUE),
    ("IBM", "^1750500", ALUA, QUEUE),
    ("IBM", "^2107900", BY_PRIO, QUEUE),
    ("IBM", "^2145", ALUA, QUEUE),
    ("IBM", "^IPR", HANDLER, QUEUE),
    ("IBM", "1820N00", ALUA, QUEUE),
    ("(XIV|IBM)", "(NEXTRA|2810XIV)", QUEUE, &[("path_grouping_policy", "group_by_prio"), ("failback", "15")]),
    ("(TMS|IBM)", "(RamSan|FlashSystem)", MULTIBUS, &[]),
    ("IBM", "^(DCS9900|2851)", ALUA, RETRY_30),
    ("AIX", "VDASD", MULTIBUS, RETRY_60),
    ("IBM", "3303[ ]+NVDISK", RETRY_60, &[]),
    ("AIX", "NVDISK", HANDLER, RETRY_60),
    ("LENOVO", "DE_Series", RDAC, &[]),
    // NetApp
    (
        "NETAPP",
        "LUN",
        BY_PRIO,
        &[
            ("features", "2 pg_init_retries 50"),
            ("prio", "ontap"),
            ("no_path_retry", "queue"),
            ("dev_loss_tmo", "infinity"),
        ],
    ),
    ("(NETAPP|LSI|ENGENIO)", "INF-01-00", RDAC, &[]),
    ("SolidFir", "SSD SAN", MULTIBUS, RETRY_24),
    ("NEC", "DISK ARRAY", HANDLER, &[]),
    // Oracle, Sun and StorageTek
    ("^Pillar", "^Axiom", ALUA, &[]),
    ("^Oracle", "^Oracle FS", ALUA, &[]),
    ("STK", "BladeCtlr", RDAC, &[]),
    ("STK", "OPENstorage", RDAC, &[]),
    ("STK", "FLEXLINE 380", RDAC, &[]),
    ("SUN", "StorEdge 3", MULTIBUS, &[]),
    ("SUN", "STK6580_6780", RDAC, &[]),
    ("SUN", "CSM[12]00_R", RDAC, &[]),
    ("SUN", "LCSM100_[IEFS]", RDAC, &[]),
    ("SUN", "SUN_6180", RDAC, &[]),
    ("SUN", "ArrayStorage", RDAC, &[]),
    ("SUN", "(Sun Storage|ZFS Storage|COMSTAR)", ALUA, RETRY_30),
    // Others
    ("PIVOT3", "RAIGE VOLUME", MULTIBUS, QUEUE),
    ("(NexGen|Pivot3)", "(TierStore|vSTAC)", ALUA, QUEUE),
    ("(Intel|INTEL)", "Multi-Flex", HANDLER, QUEUE),
    (
        "(LIO-ORG|SUSE)",
        ".*",
        HANDLER,
        &[("no_path_retry", "12"), ("path_checker", "directio"), ("detect_checker", "no")],
    ),
    ("^SCST_", ".*", ALUA, RETRY_12),
    ("DataCore", "SANmelody", ALUA, QUEUE),
    ("DataCore", "Virtual Disk", ALUA, QUEUE),
    ("PURE", "FlashArray", HANDLER, &[("detect_prio", "no"), ("fast_io_fail_tmo", "10")]),
    ("^(HUAWEI|HUASY|HS)", "^(Dorado[25]|HVS8|S[23568]|V1[568]|VIS6000)", BY_PRIO, RETRY_15),
    ("^(HUAWEI|AnyStor|Marstor|NETPOSA|SanM|SUGON|UDsafe)", "XSG1", BY_PRIO, RETRY_15),
    ("KOVE", "XPD", MULTIBUS, &[]),
    (
        "NFINIDAT",
        "InfiniBox",
        HANDLER,
        &[("no_path_retry", "queue"), ("fast_io_fail_tmo", "15"), ("dev_loss_tmo", "infinity"), ("detect_prio", "no")],
    ),
    ("KMNRIO", "K2", MULTIBUS, &[]),
    ("NEXSAN", "NXS-B0", ALUA, RETRY_15),
    ("NEXSAN", "SATAB", ALUA, RETRY_15),
    ("Nexsan", "(NestOS|NST5000)", HANDLER, RETRY_30),
    ("VIOLIN", "SAN ARRAY$", SERIAL, RETRY_30),
    ("VIOLIN", "SAN ARRAY ALUA", HANDLER, RETRY_30),
    ("VIOLIN", "CONCERTO ARRAY", MULTIBUS, RETRY_30),
    ("(XIOTECH|XIOtech)", "ISE", MULTIBUS, RETRY_12),
    ("(XIOTECH|XIOtech)", "IGLU DISK", MULTIBUS, RETRY_30),
    ("(XIOTECH|XIOtech)", "Magnitude", MULTIBUS, RETRY_30),
    ("Vexata", "VX", MULTIBUS, RETRY_30),
    ("Promise", "VTrak", HANDLER, RETRY_30),
    ("Promise", "Vess", HANDLER, RETRY_30),
    ("^IFT", ".*", ALUA, RETRY_30),
    ("DotHill", "SANnet", MULTIBUS, RETRY_30),
    ("DotHill", "R/Evo", ALUA, RETRY_30),
    ("DotHill", "^DH", ALUA, RETRY_30),
    ("SEAGATE", "STJX", ALUA, RETRY_30),
    ("SEAGATE", "^[456]", ALUA, RETRY_30),
    ("AStor", "NeoSapphire", BY_PRIO, RETRY_30),
    ("INSPUR", "MCS", ALUA, &[]),
    ("MacroSAN", "LU", ALUA, RETRY_30),
    ("Quantum", "(StorNext QX|QXS)", ALUA, RETRY_18),
    ("QUANTUM", "^(F|P|H)[24]", ALUA, RETRY_30),
    ("QUANTUM", "^F1", SERIAL, RETRY_30),
    (
        "VSTORAGE",
        "VSTOR-DISK",
        &[("path_grouping_policy", "group_by_node_name"), ("failback", "immediate"), ("prio", "alua")],
        &[
            ("hardware_handler", "1 alua"),
            ("features", "2 pg_init_retries 50"),
            ("no_path_retry", "queue"),
            ("detect_prio", "no"),
        ],
    ),
    ("^Qsan", ".*", BY_PRIO, &[("no_path_retry", "30"), ("prio_args", "exclusive_pref_bit")]),
];

static TABLE: LazyLock<Vec<Device>> = LazyLock::new(|| ENTRIES.iter().map(device).collect());

/// Returns all entries, as `device` sections without a line.
pub(super) fn table() -> &'static [Device] {
    &TABLE
}

fn device((vendor, product, kind, own): &Entry) -> Device {
    const GOOD: &str = "an entry of the hardware table is valid";
    let setting = |name: &str, value: &str| {
        let option = options::find(name).expect(GOOD);
        let (value, _) = option.read(value).expect(GOOD);
        Setting { option, value, file: Arc::default(), line: 0 }
    };
    let names = [("vendor", *vendor), ("product", *product)];
    let all = names.iter().chain(kind.iter()).chain(own.iter());
    let settings = all.map(|&(name, value)| setting(name, value)).collect();
    Device {
        block: Block { settings, line: 0 },
        vendor: Ere::new(vendor).expect(GOOD),
        product: Ere::new(product).expect(GOOD),
        revision: None,
    }
}

#[cfg(test)]
mod tests {
    use crate::multipath_conf::{Config, Identity, Origin};
    use std::collections::BTreeSet;

    fn disk(vendor: &str, product: &str) -> Identity {
        Identity { vendor: vendor.to_owned(), product: product.to_owned(), ..Identity::default() }
    }

    fn found(text: &str, disk: &Identity, option: &str) -> (String, Origin) {
        let config = Config::parse("m.conf", text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        let found = config.resolve(disk).get(option).cloned().unwrap_or_else(|| panic!("{option} has no value"));
        (found.value, found.origin)
    }

    #[test]
    fn known_arrays_have_their_options() {
        for (vendor, product, option, value) in [
            ("NETAPP", "LUN C-Mode", "prio", "ontap"),
            ("NETAPP", "INF-01-00", "hardware_handler", "1 rdac"),
            ("DGC", "VRAID", "path_checker", "emc_clariion"),
            ("DellEMC", "PowerStore", "fast_io_fail_tmo", "15"),
            ("3PARdata", "VV", "dev_loss_tmo", "infinity"),
            ("IBM", "2145", "no_path_retry", "queue"),
            ("IBM", "2810XIV", "failback", "15"),
            ("PURE", "FlashArray", "detect_prio", "no"),
            ("NFINIDAT", "InfiniBox", "no_path_retry", "queue"),
            ("SCST_FIO", "disk01", "prio", "alua"),
            ("VSTORAGE", "VSTOR-DISK", "path_grouping_policy", "group_by_node_name"),
            ("SEAGATE", "4006", "failback", "immediate"),
            ("Qsan", "XS5326", "prio_args", "exclusive_pref_bit"),
            ("LIO-ORG", "disk", "path_checker", "directio"),
            // Both entries match. The last one comes first.
            ("HITACHI", "DF600F", "path_grouping_policy", "multibus"),
            ("HITACHI", "DF600F", "failback", "immediate"),
        ] {
            let told = found("", &disk(vendor, product), option);
            assert_eq!(told, (value.to_owned(), Origin::Hardware), "{vendor} {product} {option}");
        }
        assert_eq!(found("", &disk("IET", "VIRTUAL-DISK"), "failback"), ("manual".to_owned(), Origin::BuiltIn));
        let text = Config::default().resolve(&disk("IBM", "2145")).show("3600");
        assert!(text.contains("\tno_path_retry \"queue\" # hardware table\n"), "{text}");
    }

    /// The first one would be used, and not the entry's own.
    #[test]
    fn an_entry_names_each_option_once() {
        for device in super::table() {
            let names: Vec<_> = device.block.settings.iter().map(|setting| setting.option.name).collect();
            assert_eq!(BTreeSet::from_iter(&names).len(), names.len(), "{names:?}");
        }
    }

    #[test]
    fn sections_of_the_file_come_before_the_table() {
        let ibm = disk("IBM", "2145");
        let retry = |text: &str| found(text, &ibm, "no_path_retry");
        let is = |value: &str, origin| (value.to_owned(), origin);
        assert_eq!(retry("defaults {\nno_path_retry 3\n}"), is("queue", Origin::Hardware));
        let any = "device {\nvendor IBM\nproduct .*\nno_path_retry 5\n}\n";
        assert_eq!(retry(&format!("devices {{\n{any}}}")), is("5", Origin::Device));
        // A section with an entry's own vendor and product takes the rest of that entry to its place.
        let own = "device {\nvendor IBM\nproduct \"^2145\"\nfailback 9\n}\n";
        let merged = format!("devices {{\n{any}{own}}}");
        assert_eq!(retry(&merged), is("queue", Origin::Hardware));
        assert_eq!(found(&merged, &ibm, "failback"), is("9", Origin::Device));
        assert_eq!(retry(&format!("devices {{\n{own}{any}}}")), is("5", Origin::Device));
        // So does the last of several sections of the same vendor and product.
        let twice = format!("devices {{\ndevice {{\nvendor IBM\nproduct \"^2145\"\nno_path_retry 7\n}}\n{any}{own}}}");
        assert_eq!(retry(&twice), is("7", Origin::Device));
    }
}
