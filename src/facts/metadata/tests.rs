//! Tests with fake metadata services: a local HTTP server with their responses.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fake::{SeenRequest, aws, azure, gcp, no, ok, serve};
use super::*;
use crate::{
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

#[tokio::test]
async fn each_cloud_completes_the_facts() {
    let facts = asked_quickly("aws", &serve(aws)).await;
    let told = [
        "i-0929128ff2f73a2f1",
        "p5.48xlarge",
        "spot",
        "us-east-2",
        "us-east-2b",
    ];
    assert_eq!(values(&facts.cloud), told.map(Some));
    assert_eq!(facts.unknown, []);

    let facts = asked_quickly("gcp", &serve(gcp)).await;
    let told = [
        "4877340112233445566",
        "a3-highgpu-8g",
        "spot",
        "europe-west4",
        "europe-west4-b",
    ];
    assert_eq!(values(&facts.cloud), told.map(Some));
    assert_eq!(facts.unknown, []);

    let facts = asked_quickly("azure", &serve(azure)).await;
    let told = [
        "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
        "Standard_ND96isr_H100_v5",
        "on-demand",
        "westeurope",
    ];
    let [id, size, lifecycle, region] = told.map(Some);
    // Azure reports an empty zone, so the machine has no zone, and the zone is not unknown.
    assert_eq!(values(&facts.cloud), [id, size, lifecycle, region, None]);
    assert_eq!(facts.unknown, []);
}

/// A cloud that is defined only by its data file.
#[tokio::test]
async fn cloud_without_code_completes_the_facts() {
    const ID: &str = "ocid1.instance.oc1.eu-frankfurt-1.antheljtwxamplefzcg5l4wq3p2k7y6vaxyz0123456789abcdefghijklmn";
    let address = serve(
        |seen| match (seen.path.as_str(), seen.header("authorization")) {
            ("/opc/v2/instance/", Some("Bearer Oracle")) => ok(&format!(
                r#"{{"availabilityDomain": "EMIr:PHX-AD-1", "id": "{ID}", "region": "phx", "canonicalRegionName":
                    "us-phoenix-1", "ociAdName": "phx-ad-1", "shape": "BM.GPU.H100.8", "metadata": {{}}}}"#
            )),
            _ => no(404),
        },
    );
    let facts = asked_quickly("oracle", &address).await;
    assert_eq!(
        values(&facts.cloud),
        [
            Some(ID),
            Some("BM.GPU.H100.8"),
            None,
            Some("us-phoenix-1"),
            Some("phx-ad-1")
        ]
    );
    assert_eq!(facts.unknown, []);
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
