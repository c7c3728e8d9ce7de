//! `install --unattended`: a systemd unit installs and reboots as often as required, and this command waits for it.

use std::time::Duration;

use camino::Utf8Path;

use super::{
    Failure, args,
    env::{Console, Env},
    prepare, status,
};
use crate::{
    config::{network, sources},
    engine,
    exit::Exit,
    host::Host,
    journal::Request,
};

/// The maximum wait for an unattended run, as in `status --wait`.
const UNATTENDED_WAIT: Duration = Duration::from_secs(3 * 3600);

/// Starts the unit and waits until it finishes.
pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::InstallArgs,
) -> Result<Exit, Failure> {
    env.only_root(host, "install")?;
    if let Some(setting) = sources::assignments(&env.vars).first() {
        let name = setting.split('=').next().unwrap_or_default();
        return Err(Failure::new(
            Exit::Usage,
            "environment-not-kept",
            &format!(
                "failed to start the systemd unit: it does not inherit the environment variable `{name}`"
            ),
            Some("write the setting to a file in `/etc/gpu-bootstrap/config.d`, or use `--set`"),
        ));
    }
    let request = prepare::request(&args.target, &args.image, true, args.lock_timeout)?;
    if !request.credentials.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            "secret-not-kept",
            "failed to start the systemd unit: the secret in `--set` would be visible to all users in the unit properties",
            Some("write it to a file in `/etc/gpu-bootstrap/config.d` with mode 0600"),
        ));
    }
    for found in network::from_environment(&env.vars) {
        console.note(&format!(
            "`{}` of the environment is not used, because the systemd unit does not inherit it; the unit uses only the \
             setting `{}`",
            found.variable, found.key
        ));
    }
    // Reject an invalid lock file or bundle here, because the unit reports errors only in its log.
    let request = prepare::with_lock(host, env, &args.target, request)?;
    let request = prepare::with_bundle(host, env, args.bundle.bundle.as_deref(), request)?;
    let lock = match &args.target.lock {
        Some(path) => Some(prepare::absolute(path)?),
        None => None,
    };
    let command = command(env, args, &request, lock.as_deref());
    if !engine::start_unattended(host, &command).await? {
        console.note("another run is in progress; waiting for it");
    }
    let wait = args::StatusArgs {
        wait: Some(UNATTENDED_WAIT),
        timing: false,
        timeline: false,
        svg: false,
        output: args.output,
    };
    status::run(host, console, &wait).await
}

/// Returns the command line of the unit.
fn command(
    env: &Env,
    args: &args::InstallArgs,
    request: &Request,
    lock: Option<&Utf8Path>,
) -> Vec<String> {
    let mut words = vec![
        env.exe.to_string(),
        "install".to_owned(),
        "--reboot".to_owned(),
    ];
    let mut option = |name: &str, value: String| words.push(format!("--{name}={value}"));
    (request.profile.iter()).for_each(|profile| option("profile", profile.clone()));
    (request.config.iter()).for_each(|path| option("config", path.to_string()));
    (lock.iter()).for_each(|path| option("lock", path.to_string()));
    (request.bundle.iter()).for_each(|path| option("bundle", path.to_string()));
    (args.target.set.iter()).for_each(|setting| option("set", setting.clone()));
    if let Some(deadline) = args.deadline {
        option("deadline", format!("{}s", deadline.as_secs()));
    }
    if let Some(timeout) = args.lock_timeout {
        option("lock-timeout", format!("{}s", timeout.as_secs()));
    }
    words
}
