//! `plan`: shows the changes that `install` would make.

use camino::Utf8Path;
use serde_json::json;

use super::{
    Failure,
    args::{self, OutputFormat},
    env::{Console, Env},
    prepare, print,
};
use crate::{
    check,
    engine::{Cancel, Planned},
    exit::Exit,
    host::Host,
    journal::Request,
    report::{document, human},
};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::PlanArgs,
) -> Result<Exit, Failure> {
    let request = prepare::request(&args.target, &args.image, false, None)?;
    let request = prepare::with_lock(host, env, &args.target, request)?;
    let bundle = args.bundle.bundle.as_deref();
    let request = prepare::with_bundle(host, env, bundle, request)?;
    let command = install_command(&args.target, bundle, &args.image);
    show(
        host,
        env,
        console,
        request,
        (&command, args.output, args.detail),
    )
    .await
}

/// Shows the changes of a request, and the command that applies them.
pub(super) async fn show(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    request: Request,
    (command, output, detail): (&str, args::OutputArgs, args::DetailArgs),
) -> Result<Exit, Failure> {
    let target = prepare::target(host, env, request).await?;
    console.warn(&target.resolution.warnings);
    let (session, reporter) = target.session(env, Vec::new(), Cancel::new())?;
    let planned = session.plan().await;
    reporter.finish();
    let Planned {
        report,
        driver,
        reasons,
        warning,
        stops_jobs,
    } = planned?;
    let mut warnings = target.resolution.warnings.clone();
    if let Some(warning) = warning {
        console.warn(std::slice::from_ref(&warning));
        warnings.push(warning);
    }
    let style = console.out_style().verbose(detail.verbose);
    match output.format {
        OutputFormat::Json => {
            let mut document = json!(document::run(&report, Some(target.facts())));
            document["driver"] = json!(driver);
            document["reasons"] = json!(reasons);
            document["warnings"] = json!(warnings);
            print::json(&mut console.out, &document)?;
        }
        OutputFormat::Human => {
            // `plan` needs no privileges, `install` does.
            let sudo = if env.root { "" } else { "sudo " };
            // `install` would not take the node out of service.
            let command = match stops_jobs {
                true => command.replacen(check::INSTALL, check::UPGRADE, 1),
                false => command.to_owned(),
            };
            let command = format!("{sudo}{command}");
            print::show(&mut console.out, |to| {
                human::plan(to, &report, (driver.as_ref(), &reasons), &command, style)
            })?;
        }
    }
    Ok(report.exit)
}

/// Returns the `install` command with the options that `plan` got, quoted for a shell.
pub(super) fn install_command(
    target: &args::TargetArgs,
    bundle: Option<&Utf8Path>,
    image: &args::ImageArgs,
) -> String {
    let request = Request {
        profile: target.profile.clone(),
        config: target.config.clone(),
        set: target.set.clone(),
        lock_path: target.lock.clone(),
        bundle: bundle.map(Utf8Path::to_owned),
        image: image.image,
        assume_gpus: image.assume_gpu.clone(),
        ..Request::default()
    };
    request.append_to(check::INSTALL)
}

#[cfg(test)]
mod tests {
    use super::install_command;
    use crate::cli::args::{ImageArgs, TargetArgs};

    #[test]
    fn the_command_repeats_all_options() {
        let target = TargetArgs {
            profile: Some("ubuntu".to_owned()),
            config: vec!["/etc/my file.toml".into()],
            set: vec![
                "driver.branch=580".to_owned(),
                r#"runtime.use=["docker"]"#.to_owned(),
                "cluster.name=it's".to_owned(),
            ],
            lock: Some("node.lock".into()),
        };
        let image = ImageArgs {
            image: true,
            assume_gpu: vec!["10de:2330".parse().unwrap(), "10de:2331".parse().unwrap()],
        };
        assert_eq!(
            install_command(&target, Some("/srv/bundle".into()), &image),
            "gpu-bootstrap install --image --profile ubuntu --config '/etc/my file.toml' --set driver.branch=580 \
             --set 'runtime.use=[\"docker\"]' --set 'cluster.name=it'\\''s' --lock node.lock --bundle \
             /srv/bundle --assume-gpu 10de:2330,10de:2331"
        );
        let none = install_command(&TargetArgs::default(), None, &ImageArgs::default());
        assert_eq!(none, "gpu-bootstrap install");
    }
}
