//! The exported functions, by topic.

mod device;
mod fields;
mod health;
mod link;
mod mig;
mod system;
mod unsupported;

/// The names of all exported functions.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    let lists = [
        system::SYMBOLS,
        system::BY_HAND,
        device::SYMBOLS,
        health::SYMBOLS,
        link::SYMBOLS,
        mig::SYMBOLS,
        fields::SYMBOLS,
        unsupported::SYMBOLS,
    ];
    lists.into_iter().flatten().copied()
}
