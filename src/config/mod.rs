//! Layers of configuration in, one validated [`desired::Desired`] out. All validation is here.

pub mod desired;
