//! Settings from the three clouds, over real HTTP from servers that answer as theirs do.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    error::{Report, one_line},
    facts::standin::{self, Reply, Seen, aws as aws_facts, azure as azure_facts, no, ok, serve},
    host::{
        Clock, HttpError, Persistence,
        fake::FakeClock,
        real::{HttpProxy, RealHttp},
    },
    model::secret::Secret,
};

const BOTH: [CloudPlace; 2] = [CloudPlace::UserData, CloudPlace::Tags];

const DOCUMENT: &str = "#gpu-bootstrap\n[driver]\nbranch = 580\nflavour = \"open\"\n";

/// What `cloud.settings` says where it is asked for.
fn asking() -> Layers {
    let mut layers = Layers::default();
    let text = "[cloud]\nsettings = [\"user-data\", \"tags\"]\n";
    layers
        .file("/etc/gpu-bootstrap/config.toml", text)
        .expect("settings");
    layers
}

async fn asked_of(
    provider: Option<&str>,
    address: &str,
    clock: &FakeClock,
) -> Result<Layers, ConfigError> {
    // A proxy would answer for another machine.
    let proxy = HttpProxy {
        url: Secret::new(serve(|seen| panic!("the proxy got {}", seen.path))),
        no_proxy: None,
    };
    let http = RealHttp::new(Arc::new(clock.clone()), Some(proxy));
    let service = Service {
        http: &http,
        clock,
        address,
        persistence: Persistence {
            until: clock.monotonic() + WHOLE,
            silences: SILENCES,
        },
    };
    read(service, provider, &BOTH, &asking()).await
}

async fn asked(
    provider: &str,
    reply: impl Fn(&Seen) -> Reply + Send + 'static,
) -> Result<Layers, ConfigError> {
    asked_of(Some(provider), &serve(reply), &FakeClock::default()).await
}

/// IMDSv2 with this user data and these tags.
fn aws_with(
    user_data: &'static str,
    tags: &'static [(&'static str, &'static str)],
) -> impl Fn(&Seen) -> Reply + Send + 'static {
    move |seen| {
        let token = aws_facts(seen);
        if !matches!(token, Some((404, _))) {
            return token;
        }
        match seen.path.strip_prefix("/latest/") {
            Some("user-data") if !user_data.is_empty() => ok(user_data),
            Some("meta-data/tags/instance") if !tags.is_empty() => {
                let names: Vec<&str> = tags.iter().map(|(name, _)| *name).collect();
                ok(&names.join("\n"))
            }
            Some(path) => {
                let name = path.strip_prefix("meta-data/tags/instance/");
                let value = tags.iter().find(|(one, _)| Some(*one) == name);
                value.map_or_else(|| no(404), |(_, value)| ok(value))
            }
            None => no(404),
        }
    }
}

fn shown(layers: &Layers) -> Vec<String> {
    let provenance = layers.provenance();
    let port = |text: String| {
        let begin = text.find("http://127.0.0.1:").map(|at| at + 7);
        let end = begin.and_then(|begin| text[begin..].find('/').map(|at| begin + at));
        match (begin, end) {
            (Some(begin), Some(end)) => format!("{}SERVICE{}", &text[..begin], &text[end..]),
            _ => text,
        }
    };
    provenance.iter().map(|one| port(one.to_string())).collect()
}

#[tokio::test]
async fn each_cloud_has_user_data_and_tags() {
    let tags = &[
        ("Name", "gpu-1"),
        ("gpu-bootstrap:driver.branch", "570"),
        ("gpu-bootstrap:runtime.use", "containerd"),
    ];
    let layers = asked("aws", aws_with(DOCUMENT, tags)).await.expect("told");
    assert_eq!(
        shown(&layers),
        [
            "driver.branch = 570 (from tag `gpu-bootstrap:driver.branch` of this instance)",
            "driver.flavour = \"open\" (from http://SERVICE/latest/user-data:4:11)",
            "runtime.use = [\"containerd\"] (from tag `gpu-bootstrap:runtime.use` of this instance)",
        ]
    );

    let layers = asked("gcp", |seen| match seen.path.as_str() {
        _ if seen.header("metadata-flavor") != Some("Google") => no(403),
        "/computeMetadata/v1/instance/attributes/user-data" => ok(DOCUMENT),
        "/computeMetadata/v1/instance/attributes/gpu-bootstrap" => ok("driver.branch = 570\n"),
        _ => no(404),
    })
    .await
    .expect("told");
    let attributes = "http://SERVICE/computeMetadata/v1/instance/attributes";
    assert_eq!(
        shown(&layers),
        [
            format!("driver.branch = 570 (from {attributes}/gpu-bootstrap:1:17)"),
            format!("driver.flavour = \"open\" (from {attributes}/user-data:4:11)"),
        ]
    );

    let layers = asked("azure", |seen| {
        let Some((200, document)) = azure_facts(seen) else {
            return no(400);
        };
        let mut document: Value = serde_json::from_str(&document).unwrap();
        document["userData"] = STANDARD.encode(DOCUMENT).into();
        document["tagsList"] = serde_json::json!([
            {"name": "gpu-bootstrap:driver.branch", "value": "570"},
            {"name": "team", "value": "gpu-bootstrap:driver.branch"},
        ]);
        ok(&document.to_string())
    })
    .await
    .expect("told");
    assert_eq!(
        shown(&layers)[0],
        "driver.branch = 570 (from tag `gpu-bootstrap:driver.branch` of this instance)"
    );
    assert_eq!(layers.provenance().len(), 2);
}

#[tokio::test]
async fn nothing_there_and_user_data_of_others_are_no_settings() {
    for user_data in [
        "",
        "#cloud-config\npackages: []\n",
        "#!/bin/sh\n",
        "#gpu-bootstrapper\n",
    ] {
        let layers = asked("aws", aws_with(user_data, &[])).await.expect("told");
        assert_eq!(layers.provenance(), [], "{user_data}");
    }
    let gone = |seen: &Seen| match seen.header("metadata-flavor") {
        Some("Google") => no(404),
        _ => no(403),
    };
    assert_eq!(asked("gcp", gone).await.expect("told").provenance(), []);
    let layers = asked("azure", standin::azure).await.expect("told");
    assert_eq!(layers.provenance(), []);
}

#[tokio::test]
async fn wrong_settings_are_errors_with_their_place_and_key() {
    for (user_data, tags, reason, parts) in [
        (
            "#gpu-bootstrap\n[driver]\nbranhc = 580\n",
            &[][..],
            "config-unknown-key",
            &["/latest/user-data:3:1", "`driver.branhc`"][..],
        ),
        (
            "#gpu-bootstrap\n[driver\n",
            &[],
            "config-syntax",
            &["/latest/user-data:2:"],
        ),
        (
            "#gpu-bootstrap\r\ndriver.branch = \"new\"\r\n",
            &[],
            "config-value",
            &["/latest/user-data:2:", "`driver.branch`"],
        ),
        (
            "",
            &[("gpu-bootstrap:driver.brnach", "580")],
            "config-unknown-key",
            &["tag `gpu-bootstrap:driver.brnach`"],
        ),
        (
            "",
            &[("gpu-bootstrap:", "580")],
            "config-syntax",
            &["tag `gpu-bootstrap:`"],
        ),
        // It may not give itself more power, nor take it away unseen.
        (
            "",
            &[("gpu-bootstrap:cloud.settings", "user-data")],
            "config-value",
            &["tag `gpu-bootstrap:cloud.settings`", "may not say"],
        ),
        (
            "#gpu-bootstrap\n[cloud]\nsettings = []\n",
            &[],
            "config-value",
            &["/latest/user-data:3:", "`cloud.settings`"],
        ),
    ] {
        let error = asked("aws", aws_with(user_data, tags)).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
        assert!(!error.passes());
    }
    let error = add(
        &mut Layers::default(),
        Told::Document {
            url: "http://a/user-data".to_owned(),
            text: b"#gpu-bootstrap\n\xff\n".to_vec(),
        },
    )
    .unwrap_err();
    assert!(error.to_string().contains("user-data:2:1"), "{error}");
}

#[tokio::test]
async fn a_service_that_comes_late_is_waited_for_and_one_that_never_comes_is_an_error() {
    let count = Arc::new(AtomicUsize::new(0));
    let so_far = Arc::clone(&count);
    let late = aws_with(DOCUMENT, &[]);
    let layers = asked("aws", move |seen| {
        match so_far.fetch_add(1, Ordering::Relaxed) {
            0..3 => no(503),
            3 => no(429),
            _ => late(seen),
        }
    });
    assert_eq!(layers.await.expect("told").provenance().len(), 2);

    // Nobody listens there: as before the network is up.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    for provider in ["aws", "gcp", "azure"] {
        let clock = FakeClock::default();
        let error = asked_of(Some(provider), &address, &clock)
            .await
            .unwrap_err();
        assert_eq!(error.reason(), "cloud-settings", "{provider}");
        assert!(error.passes() && error.hint().is_some(), "{provider}");
        let waited: Duration = clock.slept().iter().sum();
        assert!(
            waited > WHOLE / 2 && waited <= WHOLE,
            "{provider}: {waited:?}"
        );
    }
    // A service that is turned off says so.
    let error = asked("aws", |_| no(403)).await.unwrap_err();
    assert!(
        !error.passes() && one_line(&error).contains("403"),
        "{error}"
    );
    // Somebody else answers: never settings.
    let error = asked("azure", |_| ok("<html>please log in</html>"))
        .await
        .unwrap_err();
    assert!(one_line(&error).contains("something else"), "{error}");
    assert!(matches!(
        asked("gcp", |_| no(302)).await,
        Err(ConfigError::Cloud(Untold::Http(HttpError::Status {
            status: 302,
            ..
        })))
    ));
}

#[tokio::test]
async fn a_machine_elsewhere_has_no_such_settings() {
    for provider in [None, Some("hetzner")] {
        let error = asked_of(provider, "http://127.0.0.1:1", &FakeClock::default())
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("config.toml:2:12"), "{text}");
        assert!(error.hint().is_some_and(|hint| hint.contains("aws")));
    }
}

#[tokio::test]
async fn what_is_kept_for_the_run_after_a_reboot_means_the_same() {
    let tags = &[
        ("gpu-bootstrap:driver.cuda", "12.4,12.6"),
        ("gpu-bootstrap:validation.expect", "all \"is\" well"),
        ("gpu-bootstrap:repositories.own.url", "https://a/deb"),
    ];
    let layers = asked("aws", aws_with(DOCUMENT, tags)).await.expect("told");
    let mut again = Layers::default();
    for assignment in layers.assignments() {
        again.set(&assignment).expect("a setting");
    }
    assert_eq!(again.merged().unwrap(), layers.merged().unwrap());
    assert_eq!(again.provenance().len(), 5);
}
