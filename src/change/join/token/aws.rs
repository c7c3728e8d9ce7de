//! AWS Secrets Manager, with the credentials of the instance's role.
//!
//! Sources: AWS, "Retrieve security credentials from instance metadata" (`Code`, `AccessKeyId`, `SecretAccessKey`,
//! `Token`); Secrets Manager API Reference, "GetSecretValue" (errors have status 400 and a `__type`) and "Common Errors";
//! "AWS Secrets Manager endpoints" (those of China end in `.com.cn`).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    Clouds, TokenFailure, TokenFault, decoded, document, failed, refused, said, valueless,
};
use crate::{
    host::Method,
    model::secret::Secret,
    tools::sigv4::{self, AwsEndpoint, Credentials},
};

/// The roles of the instance.
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

impl Clouds<'_> {
    pub(super) async fn of_aws(&self, region: &str, name: &str) -> Result<Secret, TokenFailure> {
        let credentials = self.role().await?;
        let end = if region.starts_with("cn-") { ".cn" } else { "" };
        let host = format!("secretsmanager.{region}.amazonaws.com{end}");
        let request = json!({ "SecretId": name }).to_string();
        let given = [
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", "secretsmanager.GetSecretValue"),
        ];
        let target = AwsEndpoint {
            region,
            service: "secretsmanager",
            host: &host,
        };
        let now = self.host.clock.now();
        let headers = sigv4::sign(target, &credentials, now, &given, request.as_bytes());
        let answer = self.ask(Method::Post(request), &host, "/", headers).await?;
        let document = document(&answer.body);
        let text = |key: &str| document.get(key).and_then(Value::as_str);
        if answer.status == 200 {
            return match (text("SecretString"), text("SecretBinary")) {
                (Some(text), _) => Ok(Secret::new(text)),
                (None, Some(binary)) => decoded(STANDARD.decode(binary)),
                (None, None) => Err(valueless()),
            };
        }
        // It may have a name space before `#`.
        let word = text("__type").and_then(|word| word.rsplit('#').next());
        let fault = match word {
            Some("ResourceNotFoundException") => TokenFault::NotFound,
            Some("AccessDeniedException") => TokenFault::Denied,
            // The role's credentials have just been rotated, or too many ask.
            Some("ExpiredTokenException" | "ThrottlingException") => TokenFault::Unreachable,
            word => return Err(refused(answer.status, word)),
        };
        Err((fault, said(answer.status, word)))
    }

    async fn role(&self) -> Result<Credentials, TokenFailure> {
        let none = || {
            let why = "the instance has no role".to_owned();
            (TokenFault::NoIdentity, why)
        };
        let header = self.metadata.aws_header().await.map_err(failed)?;
        let roles = (self.metadata.find(ROLES, header.clone()).await).map_err(failed)?;
        let roles = String::from_utf8(roles.ok_or_else(none)?).unwrap_or_default();
        let role = roles.lines().next().map(str::trim).unwrap_or_default();
        if role.is_empty() || role.contains(['/', '?', '#', ' ']) {
            return Err(none());
        }
        let told = (self.metadata.find(&format!("{ROLES}{role}"), header).await).map_err(failed)?;
        let document = document(&told.ok_or_else(none)?);
        Ok(Credentials {
            key_id: self.learned(&document, "AccessKeyId")?.expose().to_owned(),
            key: self.learned(&document, "SecretAccessKey")?,
            session: Some(self.learned(&document, "Token")?),
        })
    }
}
