//! Selects a driver: `cargo run --example pick -- GPU [KERNEL [CUDA]]`.
#![expect(clippy::print_stdout, reason = "it is what the example is for")]

use std::{env, error::Error};

use gpu_compat::{
    Matrix,
    pick::{Constraints, pick},
};

fn main() -> Result<(), Box<dyn Error>> {
    let words = env::args_os().skip(1);
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let [name, rest @ ..] = &words[..] else {
        return Err("name a GPU: a product, a PCI id, or an instance type".into());
    };
    let matrix = Matrix::builtin()?;
    for name_match in matrix.name_matches(name)? {
        let constraints = Constraints {
            gpus: name_match.gpu.into_iter().collect(),
            kernel: rest.first().map(|text| text.parse()).transpose()?,
            cuda: rest
                .get(1)
                .map(|text| text.parse())
                .transpose()?
                .into_iter()
                .collect(),
            ..Constraints::default()
        };
        match pick(&matrix, &constraints) {
            Ok(pick) => println!("{}: {pick:?}", name_match.label),
            Err(none) => println!("{}: {none}", name_match.label),
        }
    }
    Ok(())
}
