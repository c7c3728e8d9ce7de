//! What is known about each external tool and its files: argument vectors and pure parsers. What is
//! in several files at once is read here, too, so that all who ask see the same.

pub mod accounts;
pub mod cdi;
pub mod container_view;
pub mod containerd;
pub mod ctr;
pub mod dkms;
pub mod docker;
pub mod initramfs;
pub mod kmod;
pub mod openpgp;
pub mod packages;
pub mod systemctl;
