//! Tests the cloud services with a local server over real HTTP.

use std::sync::Arc;

use super::*;
use crate::{
    error::Report,
    facts::fake::{Reply, SeenRequest, aws as imds, no, ok, serve},
    host::{
        fake::{self, Fakes},
        real::{HttpProxy, RealHttp},
    },
    tools::sigv4::{self, Credentials, SignedEndpoint},
};

const TOKEN: &str = "abcdef.0123456789abcdef";
const AWS: &str = "aws-secret:eu-central-1/prod/join-token";
const GCP: &str = "gcp-secret:my-project/join-token";
const AZURE: &str = "azure-secret:my-vault/join-token";

/// Other secrets in the requests and responses.
const OTHERS: [&str; 4] = [
    "wJalrXUtnFEMI/K7MDENG",
    "IQoJb3JpZ2luX2VjE",
    "ya29.google",
    "eyJ0eXAi.azure",
];

fn reason(fault: TokenFault) -> &'static str {
    let source = AWS.parse().expect("a place");
    problem(fault, &source, "").reason()
}

/// The metadata services of all three clouds, each with an identity.
fn metadata(seen: &SeenRequest) -> Reply {
    let roles = "/latest/meta-data/iam/security-credentials/";
    match seen.path.as_str() {
        "/computeMetadata/v1/instance/service-accounts/default/token" => {
            match seen.header("metadata-flavor") {
                Some("Google") => ok(
                    r#"{"access_token": "ya29.google", "expires_in": 3599, "token_type": "Bearer"}"#,
                ),
                _ => no(403),
            }
        }
        path if path.starts_with("/metadata/identity/oauth2/token?") => {
            let fits = path.ends_with("&resource=https%3A%2F%2Fvault.azure.net")
                && path.contains("api-version=2018-02-01");
            match seen.header("metadata") {
                Some("true") if fits => {
                    ok(r#"{"access_token": "eyJ0eXAi.azure", "token_type": "Bearer"}"#)
                }
                _ => no(400),
            }
        }
        path => match (imds(seen), path.strip_prefix(roles)) {
            (Some((404, _)), Some("")) => ok("gpu-node"),
            (Some((404, _)), Some("gpu-node")) => ok(
                r#"{"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "ASIAIOSFODNN7EXAMPLE",
                    "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG", "Token": "IQoJb3JpZ2luX2VjE",
                    "Expiration": "2030-01-01T00:00:00Z"}"#,
            ),
            (answer, _) => answer,
        },
    }
}

/// The secret stores. Each checks the request like its cloud.
fn services(fakes: &Fakes) -> impl Fn(&SeenRequest) -> Reply + Send + 'static {
    use crate::host::Clock;
    let now = fakes.clock.now();
    move |seen| match seen.path.as_str() {
        "/" => {
            let credentials = Credentials {
                key_id: "ASIAIOSFODNN7EXAMPLE".to_owned(),
                key: Secret::new("wJalrXUtnFEMI/K7MDENG"),
                session: Some(Secret::new("IQoJb3JpZ2luX2VjE")),
            };
            let target = SignedEndpoint {
                region: "eu-central-1",
                service: "secretsmanager",
                host: "secretsmanager.eu-central-1.amazonaws.com",
            };
            let given = [
                ("content-type", "application/x-amz-json-1.1"),
                ("x-amz-target", "secretsmanager.GetSecretValue"),
            ];
            let signed = sigv4::sign(target, &credentials, now, &given, seen.body.as_bytes());
            for (name, value) in signed {
                assert_eq!(seen.header(name), Some(value.expose()), "{name}");
            }
            assert_eq!(
                (seen.method.as_str(), seen.body.as_str()),
                ("POST", r#"{"SecretId":"prod/join-token"}"#)
            );
            ok(&format!(
                r#"{{"Name": "prod/join-token", "SecretString": "{TOKEN}\n"}}"#
            ))
        }
        "/v1/projects/my-project/secrets/join-token/versions/latest:access" => {
            assert_eq!(seen.header("authorization"), Some("Bearer ya29.google"));
            ok(r#"{"name": "x", "payload": {"data": "YWJjZGVmLjAxMjM0NTY3ODlhYmNkZWY="}}"#)
        }
        "/secrets/join-token?api-version=7.4" => {
            assert_eq!(seen.header("authorization"), Some("Bearer eyJ0eXAi.azure"));
            ok(&format!(
                r#"{{"value": "{TOKEN}", "id": "https://my-vault.vault.azure.net/x"}}"#
            ))
        }
        path => panic!("unexpected request for {path}"),
    }
}

struct Cloud {
    host: Host,
    fakes: Fakes,
    secrets: Secrets,
}

impl Cloud {
    fn new(proxy: Option<String>) -> Self {
        let (mut host, fakes) = fake::host();
        let proxy = proxy.map(|url| HttpProxy {
            url: Secret::new(url),
            no_proxy: Some("127.0.0.1".to_owned()),
        });
        host.http = Arc::new(RealHttp::new(Arc::new(fakes.clock.clone()), proxy));
        Self {
            host,
            fakes,
            secrets: Secrets::default(),
        }
    }

    async fn token(
        &self,
        source: &str,
        metadata: &str,
        services: &str,
    ) -> Result<Secret, ChangeError> {
        let service = Service {
            address: metadata,
            ..Service::of(&self.host, IDENTITY, SILENCES)
        };
        let clouds = Clouds {
            host: &self.host,
            metadata: service,
            secrets: &self.secrets,
            instead: Some(services),
        };
        clouds.token(&source.parse().expect("a place")).await
    }
}

#[tokio::test]
async fn token_is_fetched_from_each_cloud_and_hidden() {
    let cloud = Cloud::new(None);
    let (identity, services) = (serve(metadata), serve(services(&cloud.fakes)));
    for source in [AWS, GCP, AZURE] {
        let token = cloud.token(source, &identity, &services).await;
        assert_eq!(token.expect(source).expose(), TOKEN, "{source}");
    }
    for secret in OTHERS.iter().chain([&TOKEN]) {
        assert!(cloud.secrets.are_in(secret), "{secret}");
    }
}

#[tokio::test]
async fn only_secret_store_is_accessed_through_the_proxy() {
    let proxy = serve(|seen| {
        assert_eq!(
            seen.path,
            "http://secrets.example/secrets/join-token?api-version=7.4"
        );
        ok(&format!(r#"{{"value": "{TOKEN}"}}"#))
    });
    let mut cloud = Cloud::new(None);
    let everything = HttpProxy {
        url: Secret::new(proxy),
        no_proxy: None,
    };
    let clock = Arc::new(cloud.fakes.clock.clone());
    cloud.host.http = Arc::new(RealHttp::new(clock, Some(everything)));
    let identity = serve(metadata);
    let token = cloud.token(AZURE, &identity, "http://secrets.example");
    assert_eq!(token.await.expect("a token").expose(), TOKEN);
}

#[tokio::test]
async fn instance_without_identity_makes_no_further_requests() {
    let nobody = |seen: &SeenRequest| match seen.path.as_str() {
        path if path.starts_with("/metadata/identity/") => {
            Some((400, r#"{"error": "invalid_request"}"#.to_owned()))
        }
        path if path.starts_with("/computeMetadata/") => no(404),
        _ => imds(seen),
    };
    let further = serve(|seen| panic!("unexpected request for {}", seen.path));
    for source in [AWS, GCP, AZURE] {
        let cloud = Cloud::new(None);
        let error = (cloud.token(source, &serve(nobody), &further).await).expect_err(source);
        assert_eq!(error.reason(), "join-token-no-identity", "{error}");
        assert!(!error.is_retryable() && error.hint().is_some());
        assert!(error.to_string().contains(source), "{error}");
    }
}

#[tokio::test]
async fn cloud_errors_are_classified() {
    let aws = |word: &str| format!(r#"{{"__type": "{word}", "Message": "secret words: hush"}}"#);
    let gcp = |word: &str| {
        format!(
            r#"{{"error": {{"code": 0, "message": "secret words: hush", "status": "{word}"}}}}"#
        )
    };
    let azure = |word: &str| {
        format!(r#"{{"error": {{"code": "{word}", "message": "secret words: hush"}}}}"#)
    };
    use TokenFault::{Denied, Form, NotFound, Refused, Unreachable};
    for (source, status, body, fault) in [
        (AWS, 400, aws("AccessDeniedException"), Denied),
        (
            AWS,
            400,
            aws("com.amazon#ResourceNotFoundException"),
            NotFound,
        ),
        (AWS, 400, aws("InvalidSignatureException"), Refused),
        (AWS, 400, aws("ThrottlingException"), Unreachable),
        (AWS, 400, aws("ExpiredTokenException"), Unreachable),
        (AWS, 500, aws("InternalServiceError"), Unreachable),
        (AWS, 400, "<html>".to_owned(), Refused),
        (AWS, 302, String::new(), Refused),
        (AWS, 200, r#"{"SecretBinary": "/w=="}"#.to_owned(), Form),
        (
            AWS,
            200,
            r#"{"SecretString": "two words"}"#.to_owned(),
            Form,
        ),
        (AWS, 200, r#"{"Name": "x"}"#.to_owned(), Form),
        (GCP, 403, gcp("PERMISSION_DENIED"), Denied),
        (GCP, 401, gcp("UNAUTHENTICATED"), Denied),
        (GCP, 404, gcp("NOT_FOUND"), NotFound),
        (GCP, 400, gcp("FAILED_PRECONDITION"), Refused),
        (GCP, 503, gcp("UNAVAILABLE"), Unreachable),
        (GCP, 200, r#"{"payload": {"data": "%"}}"#.to_owned(), Form),
        (GCP, 200, r#"{"payload": {}}"#.to_owned(), Form),
        (AZURE, 403, azure("Forbidden"), Denied),
        (AZURE, 404, azure("SecretNotFound"), NotFound),
        (AZURE, 429, azure("Throttled"), Unreachable),
        (AZURE, 200, r#"{"value": "\n"}"#.to_owned(), Form),
        (AZURE, 200, "<html>please log in</html>".to_owned(), Form),
    ] {
        let case = format!("{source} {status} {body}");
        let cloud = Cloud::new(None);
        let services = serve(move |_| Some((status, body.clone())));
        let error = (cloud.token(source, &serve(metadata), &services).await).expect_err(&case);
        assert_eq!(error.reason(), reason(fault), "{case}: {error}");
        assert_eq!(error.is_retryable(), fault == Unreachable, "{case}");
        let text = error.to_string();
        assert!(!text.contains("hush"), "{text}");
        for secret in OTHERS {
            assert!(!format!("{error:?} {text}").contains(secret), "{text}");
        }
    }
}

#[test]
fn invalid_response_is_not_a_timeout() {
    let url = || "https://example.org".to_owned();
    let silent = HttpError::Transport {
        url: url(),
        why: "timed out".into(),
    };
    let large = HttpError::TooLarge {
        url: url(),
        limit: LARGEST,
    };
    let busy = |status| HttpError::Status { url: url(), status };
    for (error, fault) in [
        (silent, TokenFault::Unreachable),
        (busy(503), TokenFault::Unreachable),
        (busy(400), TokenFault::Refused),
        (large, TokenFault::Form),
    ] {
        assert_eq!(failed(error).0, fault);
    }
}

#[tokio::test]
async fn unavailable_service_is_retried_within_a_limit() {
    // Use the tcpmux port, because a free port could be taken by another test.
    let nobody = "http://127.0.0.1:1".to_owned();
    for source in [AWS, GCP, AZURE] {
        // First, neither the metadata service nor the secret store responds. Then only the secret store does not respond.
        for (identity, services) in [
            (nobody.clone(), nobody.clone()),
            (serve(metadata), nobody.clone()),
        ] {
            let cloud = Cloud::new(None);
            let error = (cloud.token(source, &identity, &services).await).expect_err(source);
            assert_eq!(error.reason(), "join-token-unreachable", "{error}");
            let slept = cloud.fakes.clock.slept();
            assert_eq!(slept.len(), 2, "{slept:?}");
        }
    }
    // The Azure metadata service returns 410 while it is updated.
    let cloud = Cloud::new(None);
    let updated = cloud.token(AZURE, &serve(|_| no(410)), &nobody).await;
    assert!(updated.is_err_and(|error| error.is_retryable()));
}
