//! What is known about each external tool and its files: argument vectors and pure parsers. What is
//! in several files at once is read here, too, so that all who ask see the same.

pub mod accounts;
pub mod apt;
pub mod apt_fault;
pub mod apt_lists;
pub mod apt_marks;
pub mod apt_policy;
pub mod apt_progress;
pub mod apt_simulation;
pub mod apt_sources;
pub mod container_view;
pub mod containerd;
pub mod ctr;
pub mod dkms;
pub mod docker;
pub mod dpkg;
pub mod dpkg_status;
pub mod initramfs;
pub mod kmod;
pub mod openpgp;
pub mod pkg_lock;
pub mod rpm_query;
pub mod systemctl;
