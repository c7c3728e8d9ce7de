//! What is known about each external tool and its files: argument vectors and pure parsers.

pub mod dpkg_status;
pub mod rpm_query;
