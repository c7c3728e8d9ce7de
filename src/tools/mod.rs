//! What is known about each external tool and its files: argument vectors and pure parsers.

pub mod apt_policy;
pub mod container_view;
pub mod containerd;
pub mod docker;
pub mod dpkg_status;
pub mod initramfs;
pub mod openpgp;
pub mod pkg_lock;
pub mod rpm_query;
pub mod systemctl;
