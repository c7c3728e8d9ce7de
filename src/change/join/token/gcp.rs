//! Google Secret Manager, with the service account of the instance.
//!
//! Sources: Google, "Authenticate workloads using service accounts" (`instance/service-accounts/default/token`);
//! Secret Manager REST, "projects.secrets.versions/access" (`payload.data` in Base64); "Errors" of its API design guide
//! (`error.status`).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{Clouds, TokenFailure, TokenFault, decoded, document, failed, refused, valueless};
use crate::{facts::Service, host::Method, model::secret::Secret};

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

impl Clouds<'_> {
    pub(super) async fn of_gcp(
        &self,
        project: &str,
        name: &str,
        version: &str,
    ) -> Result<Secret, TokenFailure> {
        let told = (self.metadata.find(TOKEN, Service::gcp_header()).await).map_err(failed)?;
        let told = told.ok_or_else(|| {
            let why = "the instance has no service account".to_owned();
            (TokenFault::NoIdentity, why)
        })?;
        let access = self.learned(&document(&told), "access_token")?;
        let bearer = Secret::new(format!("Bearer {}", access.expose()));
        let path = format!("/v1/projects/{project}/secrets/{name}/versions/{version}:access");
        let host = "secretmanager.googleapis.com";
        let headers = vec![("authorization", bearer)];
        let answer = self.ask(Method::Get, host, &path, headers).await?;
        let document = document(&answer.body);
        if answer.status == 200 {
            let data = document.pointer("/payload/data").and_then(Value::as_str);
            return data.map_or_else(|| Err(valueless()), |data| decoded(STANDARD.decode(data)));
        }
        let word = document.pointer("/error/status").and_then(Value::as_str);
        Err(refused(answer.status, word))
    }
}
