// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of libvirt's domain XML that are read, as the deserializer fills them.
//!
//! Guarantees: only the structure is checked; numbers stay text, so that the interpreting code can report what is wrong. Elements and
//! attributes that are not named here are ignored. Source: libvirt formatdomain.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// `<domain>`.
#[derive(Deserialize)]
pub struct Domain {
    pub name: Option<String>,
    pub vcpu: Option<Vcpu>,
    pub iothreads: Option<String>,
    pub iothreadids: Option<IoThreadIds>,
    pub cputune: Option<CpuTune>,
    pub devices: Option<Devices>,
}

/// `<vcpu current='2'>4</vcpu>`.
#[derive(Deserialize)]
pub struct Vcpu {
    #[serde(rename = "@current")]
    pub current: Option<String>,
    #[serde(rename = "$text")]
    pub count: Option<String>,
}

/// `<iothreadids>`.
#[derive(Deserialize)]
pub struct IoThreadIds {
    #[serde(rename = "iothread", default)]
    pub iothreads: Vec<IoThread>,
}

/// `<iothread id='1'>` with its polling.
#[derive(Deserialize)]
pub struct IoThread {
    #[serde(rename = "@id")]
    pub id: Option<String>,
    pub poll: Option<Poll>,
}

/// `<poll max='0' grow='0' shrink='0'/>`.
#[derive(Deserialize)]
pub struct Poll {
    #[serde(rename = "@max")]
    pub max: Option<String>,
    #[serde(rename = "@grow")]
    pub grow: Option<String>,
    #[serde(rename = "@shrink")]
    pub shrink: Option<String>,
}

/// `<cputune>`.
#[derive(Deserialize)]
pub struct CpuTune {
    #[serde(rename = "iothreadpin", default)]
    pub pins: Vec<Pin>,
}

/// `<iothreadpin iothread='1' cpuset='0-3'/>`.
#[derive(Deserialize)]
pub struct Pin {
    #[serde(rename = "@iothread")]
    pub iothread: Option<String>,
    #[serde(rename = "@cpuset")]
    pub cpuset: Option<String>,
}

/// `<devices>`.
#[derive(Deserialize)]
pub struct Devices {
    #[serde(rename = "disk", default)]
    pub disks: Vec<Disk>,
}

/// `<disk>`.
#[derive(Deserialize)]
pub struct Disk {
    #[serde(rename = "@type")]
    pub kind: Option<String>,
    #[serde(rename = "@device")]
    pub device: Option<String>,
    #[serde(default)]
    driver: Driver,
    pub source: Option<Source>,
    pub target: Option<Target>,
    pub readonly: Option<IgnoredAny>,
    pub shareable: Option<IgnoredAny>,
    pub transient: Option<IgnoredAny>,
    pub serial: Option<String>,
    pub iotune: Option<IoTune>,
    pub blockio: Option<BlockIo>,
}

impl Disk {
    /// Its `<driver>`, empty if it has none.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }
}

/// `<driver>`.
#[derive(Default, Deserialize)]
pub struct Driver {
    #[serde(rename = "@type")]
    pub kind: Option<String>,
    #[serde(rename = "@cache")]
    pub cache: Option<String>,
    #[serde(rename = "@discard")]
    pub discard: Option<String>,
    #[serde(rename = "@error_policy")]
    pub error_policy: Option<String>,
    #[serde(rename = "@queues")]
    pub queues: Option<String>,
    #[serde(rename = "@queue_size")]
    pub queue_size: Option<String>,
    #[serde(rename = "@iothread")]
    pub iothread: Option<String>,
    pub iothreads: Option<MappedThreads>,
}

/// `<driver><iothreads>`.
#[derive(Deserialize)]
pub struct MappedThreads {
    #[serde(rename = "iothread", default)]
    pub iothreads: Vec<MappedThread>,
}

/// `<iothread id='1'><queue id='0'/></iothread>`.
#[derive(Deserialize)]
pub struct MappedThread {
    #[serde(rename = "@id")]
    pub id: Option<String>,
    #[serde(rename = "queue", default)]
    pub queues: Vec<Queue>,
}

/// `<queue id='0'/>`.
#[derive(Deserialize)]
pub struct Queue {
    #[serde(rename = "@id")]
    pub id: Option<String>,
}

/// `<source>`.
#[derive(Deserialize)]
pub struct Source {
    #[serde(rename = "@file")]
    pub file: Option<String>,
    #[serde(rename = "@dev")]
    pub dev: Option<String>,
    pub slices: Option<Slices>,
}

/// `<slices>`.
#[derive(Deserialize)]
pub struct Slices {
    #[serde(rename = "slice", default)]
    pub slices: Vec<Slice>,
}

/// `<slice type='storage' offset='1048576' size='1073741824'/>`.
#[derive(Deserialize)]
pub struct Slice {
    #[serde(rename = "@type")]
    pub kind: Option<String>,
    #[serde(rename = "@offset")]
    pub offset: Option<String>,
    #[serde(rename = "@size")]
    pub size: Option<String>,
}

/// `<target dev='vda' bus='virtio'/>`.
#[derive(Deserialize)]
pub struct Target {
    #[serde(rename = "@dev")]
    pub dev: Option<String>,
    #[serde(rename = "@bus")]
    pub bus: Option<String>,
}

/// `<blockio>`; 0 is the default.
#[derive(Deserialize)]
pub struct BlockIo {
    #[serde(rename = "@logical_block_size")]
    pub logical_block_size: Option<String>,
    #[serde(rename = "@physical_block_size")]
    pub physical_block_size: Option<String>,
}

/// `<iotune>`.
#[derive(Deserialize)]
pub struct IoTune {
    pub total_bytes_sec: Option<String>,
    pub read_bytes_sec: Option<String>,
    pub write_bytes_sec: Option<String>,
    pub total_iops_sec: Option<String>,
    pub read_iops_sec: Option<String>,
    pub write_iops_sec: Option<String>,
    total_bytes_sec_max: Option<IgnoredAny>,
    read_bytes_sec_max: Option<IgnoredAny>,
    write_bytes_sec_max: Option<IgnoredAny>,
    total_iops_sec_max: Option<IgnoredAny>,
    read_iops_sec_max: Option<IgnoredAny>,
    write_iops_sec_max: Option<IgnoredAny>,
    size_iops_sec: Option<IgnoredAny>,
    group_name: Option<IgnoredAny>,
}

impl IoTune {
    /// Whether there is more than the plain rates.
    pub fn has_burst(&self) -> bool {
        [
            &self.total_bytes_sec_max,
            &self.read_bytes_sec_max,
            &self.write_bytes_sec_max,
            &self.total_iops_sec_max,
            &self.read_iops_sec_max,
            &self.write_iops_sec_max,
            &self.size_iops_sec,
            &self.group_name,
        ]
        .iter()
        .any(|o| o.is_some())
    }
}
