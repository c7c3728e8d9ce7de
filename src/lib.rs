//! gpu-bootstrap.
