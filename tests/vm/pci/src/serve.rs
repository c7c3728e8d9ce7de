//! The functions of a machine, each behind a socket of its own.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Error, Result, bail};
use vfio_user::Server;

use crate::function::Emulated;
use crate::table::{Address, Function};

/// Sockets that answer until this is dropped or the process ends.
#[derive(Debug)]
pub struct Serving {
    sockets: Vec<PathBuf>,
}

/// The socket of a function, for QEMU's command line.
pub fn socket(dir: &Path, address: &Address) -> PathBuf {
    dir.join(format!("{address}.sock"))
}

/// Opens the socket of each function in `dir`; when this returns, all of them can be connected to.
/// QEMU is started anew at each reboot of a machine: a function takes one connection after the
/// other, and is as after power on at each. What keeps one from taking connections goes to `ended`.
pub fn start(dir: &Path, functions: &[Function], ended: &Sender<Result<()>>) -> Result<Serving> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut serving = Serving {
        sockets: Vec::new(),
    };
    for function in functions {
        let path = socket(dir, &function.address);
        remove_stale(&path)?;
        let emulated = Emulated::new(&function.device);
        let server = Server::new(&path, true, emulated.interrupts(), emulated.regions())
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        serving.sockets.push(path);
        let name = function.address.to_string();
        let ended = ended.clone();
        thread::Builder::new()
            .name(name.clone())
            .spawn(move || answer(&name, &server, emulated, &ended))
            .context("cannot start a thread")?;
    }
    Ok(serving)
}

impl Drop for Serving {
    fn drop(&mut self) {
        for path in &self.sockets {
            // A socket that somebody else removed is as gone as it should be.
            drop(fs::remove_file(path));
        }
    }
}

fn answer(name: &str, server: &Server, mut emulated: Emulated, ended: &Sender<Result<()>>) {
    loop {
        // The protocol's crate panics on some malformed messages: that ends the connection alone.
        match catch_unwind(AssertUnwindSafe(|| server.run(&mut emulated))) {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error @ vfio_user::Error::SocketAccept(_))) => {
                // Nobody listens if the process is about to end.
                drop(ended.send(Err(Error::new(error).context(name.to_string()))));
                return;
            }
            // The other side went away in the middle of a message, as at a power cut.
            Ok(Err(_)) => {}
        }
        emulated.power_on();
    }
}

/// A server that was killed leaves its socket; one that lives keeps it.
fn remove_stale(path: &Path) -> Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look at {}", path.display()));
        }
    };
    if !kind.is_socket() || UnixStream::connect(path).is_ok() {
        bail!("{} is in use", path.display());
    }
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}
