//! The binary: runs the command line on a real machine.

use std::{
    io::{IsTerminal, stderr, stdout},
    os::fd::AsFd,
    process::ExitCode,
    sync::Arc,
};

use camino::Utf8PathBuf;
use gpu_bootstrap::{
    cli::{self, Console, Env},
    engine::own_time,
    exit::Exit,
    host::real::{self, HttpProxy, RealClock, RealHttp},
    model::secret::{Hiding, Secrets},
    report::{Drawn, Log, UNWRAPPED, WIDTH, log},
};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};

fn main() -> ExitCode {
    // The signal mask of the parent is inherited and may block these signals, but a run must be stoppable. Unblock
    // them before any thread starts, so that all threads inherit the mask.
    let stop = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    if let Err(error) = stop.thread_unblock() {
        return fail("failed to listen for SIGINT, SIGTERM and SIGHUP", &error);
    }
    // Disable core dumps of this process and its children, because a dump would contain the secrets of the run. A limit of 1
    // byte also disables dumps that the kernel pipes to a program such as systemd-coredump; a limit of 0 does not
    // (`do_coredump` in fs/coredump.c). Use 0 if the limit is already 0, because only a privileged process can raise it.
    let limited = setrlimit(Resource::RLIMIT_CORE, 1, 1);
    if let Err(error) = limited.or_else(|_| setrlimit(Resource::RLIMIT_CORE, 0, 0)) {
        return fail("failed to turn off core dumps", &error);
    }
    let host = own_time::measured(real::host());
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail("failed to start the runtime", &error),
    };
    let exe = match std::env::current_exe().map(Utf8PathBuf::try_from) {
        Ok(Ok(exe)) => exe,
        Ok(Err(error)) => return fail("failed to find the path of this binary", &error),
        Err(error) => return fail("failed to find the path of this binary", &error),
    };
    let (mut out, mut err) = (stdout(), stderr());
    let drawn = Drawn::default();
    let secrets = Secrets::default();
    let filter = std::env::var(log::VARIABLE).ok();
    let logging = match Log::start(
        filter.as_deref(),
        drawn.clone(),
        Hiding::new(Box::new(stderr()), &secrets),
    ) {
        Ok((logging, wrong)) => {
            if let Some(wrong) = wrong {
                tracing::warn!("`{}` is not valid: {wrong}", log::VARIABLE);
            }
            logging
        }
        Err(error) => return fail("failed to start logging", &error),
    };
    let (out_terminal, err_terminal) = (out.is_terminal(), err.is_terminal());
    let vars = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let mut console = Console {
        out: Hiding::new(&mut out, &secrets),
        err: Hiding::new(&mut err, &secrets),
        out_terminal,
        err_terminal,
        colour: Env::wants_colour(&vars),
        out_width: width(out_terminal, stdout()),
        err_width: width(err_terminal, stderr()),
        talk: Arc::new(|| Box::new(Hiding::new(stderr(), &Secrets::default()))),
        drawn,
    };
    let env = Env {
        root: nix::unistd::geteuid().is_root(),
        vars,
        secrets,
        exe,
        command: (std::env::args_os().nth(1))
            .map(|word| word.to_string_lossy().into_owned())
            .unwrap_or_default(),
        proxied: Arc::new(|url, direct| {
            let proxy = HttpProxy {
                url: url.clone(),
                no_proxy: direct.map(str::to_owned),
            };
            Arc::new(RealHttp::new(Arc::new(RealClock), Some(proxy)))
        }),
    };
    let words = std::env::args_os().collect();
    let exit = runtime.block_on(cli::run(words, &host, &env, &mut console));
    logging.finish();
    // Reader threads of the runtime may still wait for child processes that outlive us.
    runtime.shutdown_background();
    ExitCode::from(exit.code())
}

/// The line width: `COLUMNS` if set, otherwise the terminal width. Lines in a log or a pipe are not
/// wrapped, because `grep` works on lines.
fn width(is_terminal: bool, stream: impl AsFd) -> usize {
    let set = std::env::var("COLUMNS").ok();
    let terminal = || terminal_size::terminal_size_of(stream).map(|(width, _)| width.0.into());
    match set.and_then(|columns| columns.parse().ok()) {
        Some(columns) => columns,
        None if is_terminal => terminal().unwrap_or(WIDTH),
        None => UNWRAPPED,
    }
}

/// Prints an error before the console exists.
fn fail(what: &str, error: &dyn std::error::Error) -> ExitCode {
    use std::io::Write;
    // The error cannot be reported if standard error is also closed.
    let _ = writeln!(stderr(), "error: {what}\n  caused by: {error}");
    ExitCode::from(Exit::Internal.code())
}
