//! Tests with fake metadata services: a local HTTP server with their responses.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fake::{CloudTest, SeenRequest, aws, azure, no, ok, serve};
use super::*;
use crate::{
    facts::{
        cloud::{CloudInit, Dmi, gather},
        reader::FactReader,
    },
    host::{
        fake::{self, FakeClock},
        real::{HttpProxy, RealClock, RealHttp},
    },
    steps::fixtures::facts,
};

/// Returns the facts of a machine of which only the cloud provider was known, after querying the
/// service at `address`.
async fn asked(provider: &str, address: &str, http: &dyn Http, clock: &dyn Clock) -> Facts {
    let mut facts = facts();
    facts.cloud.provider = Some(provider.to_owned());
    facts.unknown = (facts.cloud.keys().iter())
        .map(|(fact, _)| Unknown {
            fact: (*fact).to_owned(),
            why: UNREPORTED.to_owned(),
        })
        .collect();
    let service = Service {
        http,
        clock,
        address,
        persistence: RetryLimit {
            until: clock.monotonic() + WHOLE,
            silences: 2,
        },
    };
    service.complete(&mut facts).await;
    facts
}

async fn asked_quickly(provider: &str, address: &str) -> Facts {
    let clock = FakeClock::default();
    let http = RealHttp::new(Arc::new(clock.clone()), None);
    asked(provider, address, &http, &clock).await
}

fn values(cloud: &Cloud) -> [Option<&str>; 5] {
    cloud.keys().map(|(_, value)| value.as_deref())
}

/// Each cloud in `clouds` has a file in `tests/clouds`, with firmware values and, if it has a metadata service, the responses and
/// the expected facts.
#[tokio::test]
async fn each_cloud_is_detected_and_completes_the_facts() {
    let mut missing = Vec::new();
    for row in clouds::all() {
        let name = row.name.as_str();
        let Some(test) = CloudTest::read(name) else {
            missing.push(format!("tests/clouds/{name}.toml"));
            continue;
        };
        assert!(!test.firmware.is_empty(), "{name}");
        for firmware in test.firmware {
            let dmi = Dmi {
                sys_vendor: firmware.sys_vendor,
                product_name: firmware.product_name,
                chassis_asset_tag: firmware.chassis_asset_tag,
                hypervisor_uuid: firmware.hypervisor_uuid,
                present: true,
                ..Dmi::default()
            };
            let (host, _) = fake::host();
            let mut reader = FactReader::new(host.reader().files());
            let found = gather(&mut reader, &dmi, &CloudInit::default());
            assert_eq!(found.provider.as_deref(), Some(name), "{dmi:?}");
            assert_eq!(found.instance_type, firmware.instance_type, "{dmi:?}");
        }
        assert_eq!(test.service.is_some(), row.metadata.is_some(), "{name}");
        let Some(service) = test.service else {
            continue;
        };
        let facts = asked_quickly(name, &serve(move |seen| service.reply(seen))).await;
        for (fact, value) in facts.cloud.keys() {
            let wanted = fact
                .strip_prefix("cloud.")
                .and_then(|key| test.facts.get(key));
            assert_eq!(value.as_ref(), wanted, "{name}: {fact}");
        }
        assert_eq!(facts.unknown, [], "{name}");
    }
    assert!(missing.is_empty(), "missing: {}", missing.join(", "));
    let files = CloudTest::directory().read_dir_utf8().unwrap();
    assert_eq!(files.count(), clouds::all().len());
}

#[tokio::test]
async fn complete_facts_stay_without_a_request() {
    let mut machine = facts();
    machine.cloud = Cloud {
        provider: Some("aws".to_owned()),
        instance_id: Some("i-1".to_owned()),
        instance_type: Some("g5.xlarge".to_owned()),
        lifecycle: Some("on-demand".to_owned()),
        region: Some("eu-central-1".to_owned()),
        zone: Some("eu-central-1a".to_owned()),
    };
    let (host, fakes) = fake::host();
    let before = machine.clone();
    complete(&host, &mut machine).await;
    assert_eq!(machine, before);
    // For a cloud without a known metadata service, no request is sent either.
    machine.cloud.provider = Some("hetzner".to_owned());
    machine.cloud.zone = None;
    complete(&host, &mut machine).await;
    assert_eq!(fakes.http.log(), [""; 0]);

    machine.cloud.provider = Some("aws".to_owned());
    let clock = FakeClock::default();
    let service = Service {
        http: &RealHttp::new(Arc::new(clock.clone()), None),
        clock: &clock,
        address: &serve(aws),
        persistence: RetryLimit {
            until: clock.monotonic() + WHOLE,
            silences: 2,
        },
    };
    service.complete(&mut machine).await;
    assert_eq!(machine.cloud.instance_type.as_deref(), Some("g5.xlarge"));
    assert_eq!(machine.cloud.zone.as_deref(), Some("us-east-2b"));
}

#[tokio::test]
async fn missing_key_is_absent_and_not_unknown() {
    let address = serve(|seen| match seen.path.as_str() {
        "/latest/meta-data/instance-life-cycle" => no(404),
        _ => aws(seen),
    });
    let facts = asked_quickly("aws", &address).await;
    assert_eq!(facts.cloud.lifecycle, None);
    assert_eq!(facts.cloud.zone.as_deref(), Some("us-east-2b"));
    assert_eq!(facts.unknown, []);
}

#[tokio::test]
async fn too_many_requests_are_retried_within_the_deadline() {
    let count = Arc::new(AtomicUsize::new(0));
    let seen_so_far = Arc::clone(&count);
    let address = serve(
        move |seen| match seen_so_far.fetch_add(1, Ordering::Relaxed) {
            0 | 2 => no(429),
            1 => no(503),
            _ => azure(seen),
        },
    );
    let facts = asked_quickly("azure", &address).await;
    assert_eq!(facts.cloud.region.as_deref(), Some("westeurope"));
    assert_eq!(count.load(Ordering::Relaxed), 4);

    let address = serve(|_| no(429));
    let clock = FakeClock::default();
    let http = RealHttp::new(Arc::new(clock.clone()), None);
    let facts = asked("azure", &address, &http, &clock).await;
    assert_eq!(values(&facts.cloud), [None; 5]);
    let why = &facts.unknown[0].why;
    assert!(
        why.starts_with(UNREPORTED) && why.ends_with("the server returned 429"),
        "{why}"
    );
    assert!(clock.slept().iter().sum::<Duration>() < WHOLE);
}

#[tokio::test]
async fn slow_service_is_waited_for() {
    let clock = Arc::new(RealClock);
    let http = RealHttp::new(clock.clone(), None);
    let slow = |seen: &SeenRequest| {
        std::thread::sleep(Duration::from_millis(100));
        aws(seen)
    };
    let facts = asked("aws", &serve(slow), &http, &*clock).await;
    assert!(facts.unknown.is_empty(), "{:?}", facts.unknown);
}

#[tokio::test]
async fn silent_or_missing_service_costs_little_time() {
    let clock = Arc::new(RealClock);
    let http = RealHttp::new(clock.clone(), None);
    let begin = clock.monotonic();
    // As in a container if IMDSv2 has a hop limit of 1: the PUT request gets no response.
    let facts = asked("aws", &serve(|_| None), &http, &*clock).await;
    assert_eq!(facts.unknown.len(), 5);
    assert!(clock.monotonic() - begin < WHOLE);

    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let begin = clock.monotonic();
    let facts = asked("gcp", &address, &http, &*clock).await;
    assert_eq!(facts.unknown.len(), 5);
    assert!(clock.monotonic() - begin < ANSWER);
}

#[tokio::test]
async fn unexpected_responses_are_rejected() {
    let facts = asked_quickly(
        "aws",
        &serve(|seen| match seen.method.as_str() {
            "PUT" => no(403),
            _ => panic!("request without a token"),
        }),
    )
    .await;
    assert!(facts.unknown[0].why.ends_with("the server returned 403"));

    for (provider, page) in [("gcp", "<html>please log in</html>"), ("azure", "[1]")] {
        let page = page.to_owned();
        let facts = asked_quickly(provider, &serve(move |_| ok(&page))).await;
        assert_eq!(values(&facts.cloud), [None; 5], "{provider}");
        assert!(
            facts.unknown[0].why.contains("the response is not"),
            "{provider}"
        );
    }
    // A redirect leads to another server, so it is rejected.
    let facts = asked_quickly("azure", &serve(|_| no(302))).await;
    assert!(facts.unknown[0].why.ends_with("the server returned 302"));
}

#[tokio::test]
async fn proxy_is_not_used_and_token_is_not_in_the_facts() {
    let proxy = HttpProxy {
        url: Secret::new(serve(|seen| {
            panic!("the proxy received a request for {}", seen.path)
        })),
        no_proxy: None,
    };
    let clock = FakeClock::default();
    let http = RealHttp::new(Arc::new(clock.clone()), Some(proxy));
    let facts = asked("aws", &serve(aws), &http, &clock).await;
    assert_eq!(facts.cloud.instance_type.as_deref(), Some("p5.48xlarge"));
    assert!(!format!("{facts:?}").contains("AQAEA"));
}
