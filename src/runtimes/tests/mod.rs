//! Compares gpu-bootstrap with recorded output of real daemons.

mod arrangements;
