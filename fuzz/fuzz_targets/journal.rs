#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| gpu_bootstrap_fuzz::give("journal", text));
