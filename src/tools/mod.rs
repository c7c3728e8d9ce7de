//! Knowledge about external tools and their files: argument vectors and pure parsers. Data from several files is also combined
//! here, so that all callers get the same result.

pub mod accounts;
pub mod cloud_init;
pub mod container_view;
pub mod cuda;
pub mod dcgm;
pub mod device_nodes;
pub mod efi;
pub mod faults;
pub mod fleetlock;
pub mod gridd;
pub mod imex;
pub mod initramfs;
pub mod kernel_log;
pub mod kmod;
pub mod kubelet;
pub mod kubernetes;
pub mod lspci;
pub mod module_file;
pub mod mounts;
pub mod mps;
pub mod nvidia_smi;
pub mod oci;
pub mod openpgp;
pub mod packages;
pub mod prebuilt;
pub mod probe;
pub mod selinux;
pub mod sigv4;
pub mod sysctl;
pub mod syslog;
pub mod systemctl;
pub mod tar;
pub mod toolkit;
pub mod xid;
pub(crate) mod yaml;

#[cfg(test)]
mod tests;
