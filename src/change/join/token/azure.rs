//! Azure Key Vault, with the managed identity of the machine.
//!
//! Sources: Microsoft, "How to use managed identities for Azure resources on an Azure VM to acquire an access token"
//! (400 if there is no identity; 404 and 410 while the service is updated, to be tried again); Key Vault REST, "Get
//! Secret" (`value`), "Authentication, requests and responses" (`error.code`).

use serde_json::Value;

use super::{Clouds, TokenFailure, TokenFault, document, failed, refused, valueless};
use crate::{
    facts::Service,
    host::{HttpError, Method},
    model::secret::Secret,
};

/// The token is for the public cloud's vaults.
const TOKEN: &str =
    "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fvault.azure.net";

const VERSION: &str = "api-version=7.4";

impl Clouds<'_> {
    pub(super) async fn of_azure(
        &self,
        vault: &str,
        name: &str,
        version: Option<&str>,
    ) -> Result<Secret, TokenFailure> {
        let told = (self
            .metadata
            .ask(Method::Get, TOKEN, Service::azure_header()))
        .await;
        let told = told.map_err(|error| match error {
            HttpError::Status { status: 400, .. } => {
                let why = "the machine has no managed identity, or several".to_owned();
                (TokenFault::NoIdentity, why)
            }
            HttpError::Status {
                status: 404 | 410, ..
            } => (TokenFault::Unreachable, error.to_string()),
            error => failed(error),
        })?;
        let access = self.learned(&document(&told), "access_token")?;
        let bearer = Secret::new(format!("Bearer {}", access.expose()));
        let version = version
            .map(|version| format!("/{version}"))
            .unwrap_or_default();
        let path = format!("/secrets/{name}{version}?{VERSION}");
        let host = format!("{vault}.vault.azure.net");
        let headers = vec![("authorization", bearer)];
        let answer = self.ask(Method::Get, &host, &path, headers).await?;
        let document = document(&answer.body);
        if answer.status == 200 {
            let value = document.get("value").and_then(Value::as_str);
            return value.map(Secret::new).ok_or_else(valueless);
        }
        let word = document.pointer("/error/code").and_then(Value::as_str);
        Err(refused(answer.status, word))
    }
}
