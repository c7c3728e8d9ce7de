//! `upgrade`: `install` for a node in use, which takes the node out of service before the first change and returns it after the
//! validation.

use super::{
    Failure, args,
    env::{Console, Env},
    install::{self, RunOutput},
    plan,
    prepare::{self, Asked},
};
use crate::{engine, exit::Exit, host::Host, journal::Request};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::UpgradeArgs,
) -> Result<Exit, Failure> {
    if args.dry_run {
        let request = requested(host, env, args)?;
        let command = command(args);
        return plan::show(
            host,
            env,
            console,
            request,
            (&command, args.output, args.detail),
        )
        .await;
    }
    env.only_root(host, "upgrade")?;
    let asked = Asked {
        request: requested(host, env, args)?,
        resumed: false,
        now: args.now,
    };
    let output = RunOutput {
        events: args.events.as_deref(),
        detail: args.detail,
        format: args.output.format,
    };
    install::apply(host, env, console, asked, &output).await
}

/// Returns the `upgrade` command with the settings that `--dry-run` got, quoted for a shell.
fn command(args: &args::UpgradeArgs) -> String {
    let bundle = args.bundle.bundle.as_deref();
    let command = plan::install_command(&args.target, bundle, &args::ImageArgs::default());
    let mut command = command.replacen(" install", " upgrade", 1);
    if args.as_installed {
        command.push_str(" --as-installed");
    }
    command
}

/// Returns the request of this command line.
fn requested(host: &Host, env: &Env, args: &args::UpgradeArgs) -> Result<Request, Failure> {
    let image = args::ImageArgs::default();
    let request = prepare::request(&args.target, &image, args.reboot, args.lock_timeout)?;
    let request = prepare::with_lock(host, env, &args.target, request)?;
    let bundle = args.bundle.bundle.as_deref();
    let mut request = prepare::with_bundle(host, env, bundle, request)?;
    if args.as_installed {
        let installed = engine::request(host)?.ok_or_else(|| {
            Failure::new(
                Exit::Usage,
                "nothing-installed",
                "failed to upgrade: the journal contains no installation",
                Some("run `gpu-bootstrap install`"),
            )
        })?;
        request = Request {
            reboot: args.reboot,
            lock_timeout_seconds: request.lock_timeout_seconds,
            ..installed
        };
    }
    let deadline = args.deadline.map(|deadline| deadline.as_secs());
    Ok(Request {
        upgrade: true,
        deadline_seconds: deadline,
        ..request
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::command;
    use crate::cli::args::{Cli, Command};

    #[test]
    fn command_repeats_the_settings() {
        for (words, expected) in rows! {
            "--as-installed", "gpu-bootstrap upgrade --as-installed";
            "--set driver.branch=580 --lock node.lock",
                "gpu-bootstrap upgrade --set driver.branch=580 --lock node.lock";
        } {
            let line = format!("gpu-bootstrap upgrade --dry-run {words}");
            let parsed = Cli::try_parse_from(line.split(' ')).expect("valid");
            let Command::Upgrade(args) = parsed.command else {
                panic!("{line}");
            };
            assert_eq!(command(&args), expected);
        }
        // The command has no other options that affect a run, because `--dry-run` rejects them.
        for option in ["--now", "--reboot", "--deadline=1h", "--lock-timeout=1m"] {
            let line = ["gpu-bootstrap", "upgrade", "--dry-run", option];
            assert!(Cli::try_parse_from(line).is_err(), "{option}");
        }
    }
}
