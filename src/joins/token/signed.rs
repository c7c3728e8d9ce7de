//! Authentication with the role of an instance: its temporary credentials sign each request.
//!
//! Source: AWS, "Retrieve security credentials from instance metadata" (`AccessKeyId`, `SecretAccessKey`, `Token`).

use super::{Clouds, StoreRequest, TokenFailure, TokenFault, document};
use crate::{
    model::{
        clouds::{self, CloudRow, SecretRow},
        secret::Secret,
        token::SecretLocation,
    },
    tools::sigv4::{self, Credentials, SignedEndpoint},
};

impl Clouds<'_> {
    /// Returns the headers of a request, including its signature.
    pub(crate) async fn signed(
        &self,
        cloud: &'static CloudRow,
        row: &'static SecretRow,
        place: &SecretLocation,
        request: &StoreRequest,
    ) -> Result<Vec<(&'static str, Secret)>, TokenFailure> {
        let credentials = self.role(cloud, row).await?;
        let target = SignedEndpoint {
            region: place.first(),
            service: &row.service,
            host: &request.host,
        };
        let given: Vec<_> = row
            .headers
            .iter()
            .map(|text| clouds::header(text))
            .collect();
        let body = request.body.as_deref().unwrap_or_default();
        let now = self.host.clock.now();
        Ok(sigv4::sign(
            target,
            &credentials,
            now,
            &given,
            body.as_bytes(),
        ))
    }

    /// Fetches the credentials of the instance's role. The metadata service first returns the name of the role.
    async fn role(
        &self,
        cloud: &'static CloudRow,
        row: &'static SecretRow,
    ) -> Result<Credentials, TokenFailure> {
        let roles = self.identity(cloud, row, "").await?;
        let roles = String::from_utf8(roles).unwrap_or_default();
        let role = roles.lines().next().map(str::trim).unwrap_or_default();
        // The name becomes a part of the next path.
        if role.is_empty() || role.contains(['/', '?', '#', ' ']) {
            let why = "the instance has no role".to_owned();
            return Err((TokenFault::NoIdentity, why));
        }
        let document = document(&self.identity(cloud, row, role).await?);
        Ok(Credentials {
            key_id: self.learned(&document, "AccessKeyId")?.expose().to_owned(),
            key: self.learned(&document, "SecretAccessKey")?,
            session: Some(self.learned(&document, "Token")?),
        })
    }
}
