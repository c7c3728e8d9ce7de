//! Serves the functions of a machine, each behind its own socket.

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

/// Sockets that are served until this is dropped or the process exits.
#[derive(Debug)]
pub struct Serving {
    sockets: Vec<PathBuf>,
}

/// The socket of a function, for QEMU's command line.
pub fn socket(dir: &Path, address: &Address) -> PathBuf {
    dir.join(format!("{address}.sock"))
}

/// Opens the socket of each function in `dir`. When this returns, all of them accept connections. QEMU is restarted at
/// each reboot of a machine, so a function accepts one connection after the other and is reset to power-on for each. An
/// error that prevents a socket from accepting connections is sent to `ended`.
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
            // A socket that another process removed needs no removal.
            drop(fs::remove_file(path));
        }
    }
}

fn answer(name: &str, server: &Server, mut emulated: Emulated, ended: &Sender<Result<()>>) {
    loop {
        // The protocol's crate panics on some malformed messages. This closes only the connection.
        match catch_unwind(AssertUnwindSafe(|| server.run(&mut emulated))) {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error @ vfio_user::Error::SocketAccept(_))) => {
                // There is no receiver if the process is exiting.
                drop(ended.send(Err(Error::new(error).context(name.to_string()))));
                return;
            }
            // The client disconnected in the middle of a message, for example at a power loss.
            Ok(Err(_)) => {}
        }
        emulated.power_on();
    }
}

/// Removes the socket of a killed server, but not of a running one.
fn remove_stale(path: &Path) -> Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("cannot read the metadata of {}", path.display()));
        }
    };
    if !kind.is_socket() || UnixStream::connect(path).is_ok() {
        bail!("{} is in use", path.display());
    }
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}
