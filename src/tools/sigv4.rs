//! Signs AWS requests with Signature Version 4. Supports only POST requests to the root path of a service.
//!
//! Sources: AWS, "Create a signed AWS API request"; its test suite, from bazelbuild/bazel, `third_party/aws-sig-v4-test-suite`.

use jiff::Timestamp;
use ring::hmac;

use crate::{host::digest, model::secret::Secret};

/// The credentials of a role.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The access key ID, which is not a secret.
    pub key_id: String,
    pub key: Secret,
    /// The session token of temporary credentials.
    pub session: Option<Secret>,
}

/// The endpoint of a request.
#[derive(Debug, Clone, Copy)]
pub struct SignedEndpoint<'t> {
    /// The region, such as `eu-central-1`.
    pub region: &'t str,
    /// The service name in signatures, such as `secretsmanager`.
    pub service: &'t str,
    /// The host name in the URL.
    pub host: &'t str,
}

/// Signs a POST of this document to `/`. Returns all headers except `host`: `authorization`, the given headers, and the other
/// signed headers. The given names must be in lower case.
pub fn sign(
    target: SignedEndpoint<'_>,
    credentials: &Credentials,
    now: Timestamp,
    given: &[(&'static str, &str)],
    document: &[u8],
) -> Vec<(&'static str, Secret)> {
    let at = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = &at[..8];
    let mut signed: Vec<(&'static str, &str)> = given.to_vec();
    signed.extend([("host", target.host), ("x-amz-date", &at)]);
    if let Some(session) = &credentials.session {
        signed.push(("x-amz-security-token", session.expose()));
    }
    signed.sort_unstable();
    let lines: String = (signed.iter())
        .map(|(name, value)| format!("{name}:{}\n", value.trim()))
        .collect();
    let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let request = format!("POST\n/\n\n{lines}\n{names}\n{}", digest::sha256(document));
    let scope = format!("{day}/{}/{}/aws4_request", target.region, target.service);
    let text = format!(
        "AWS4-HMAC-SHA256\n{at}\n{scope}\n{}",
        digest::sha256(request.as_bytes())
    );
    let first = format!("AWS4{}", credentials.key.expose());
    let key = [day, target.region, target.service, "aws4_request"]
        .iter()
        .fold(first.into_bytes(), |key, part| mac(&key, part));
    let signature = digest::hex(&mac(&key, &text));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        credentials.key_id
    );
    let mut headers = vec![("authorization", Secret::new(authorization))];
    headers.extend(
        (signed.into_iter())
            .filter(|(name, _)| *name != "host")
            .map(|(name, value)| (name, Secret::new(value))),
    );
    headers
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signs with the inputs that all cases of the test suite share.
    fn signed(
        session: Option<&str>,
        given: &[(&'static str, &str)],
        document: &str,
    ) -> (String, Vec<&'static str>) {
        let target = SignedEndpoint {
            region: "us-east-1",
            service: "service",
            host: "example.amazonaws.com",
        };
        let credentials = Credentials {
            key_id: "AKIDEXAMPLE".to_owned(),
            key: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            session: session.map(Secret::new),
        };
        let now = "2015-08-30T12:36:00Z".parse().expect("a time");
        let headers = sign(target, &credentials, now, given, document.as_bytes());
        let (name, authorization) = &headers[0];
        assert_eq!(*name, "authorization");
        let names = headers[1..].iter().map(|(name, _)| *name).collect();
        (authorization.expose().to_owned(), names)
    }

    fn expected(names: &str, signature: &str) -> String {
        format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders={names}, \
             Signature={signature}"
        )
    }

    #[test]
    fn aws_test_suite_passes() {
        // post-vanilla
        let (authorization, names) = signed(None, &[], "");
        assert_eq!(
            authorization,
            expected(
                "host;x-amz-date",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
            )
        );
        assert_eq!(names, ["x-amz-date"]);
        // post-x-www-form-urlencoded
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let (authorization, names) = signed(None, &form, "Param1=value1");
        assert_eq!(
            authorization,
            expected(
                "content-type;host;x-amz-date",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"
            )
        );
        assert_eq!(names, ["content-type", "x-amz-date"]);
        // post-sts-token/post-sts-header-before
        let session = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeo\
                       IYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5V\
                       SXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yj\
                       c8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";
        let (authorization, names) = signed(Some(session), &[], "");
        assert_eq!(
            authorization,
            expected(
                "host;x-amz-date;x-amz-security-token",
                "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"
            )
        );
        assert_eq!(names, ["x-amz-date", "x-amz-security-token"]);
    }
}
