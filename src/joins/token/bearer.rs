//! Authentication with a bearer token (Azure, Google Cloud): the metadata service returns an access token for the identity of
//! the instance.

use super::{Clouds, TokenFailure, document};
use crate::model::{
    clouds::{CloudRow, SecretRow},
    secret::Secret,
};

impl Clouds<'_> {
    /// Returns the `authorization` header.
    pub(crate) async fn bearer(
        &self,
        cloud: &'static CloudRow,
        row: &'static SecretRow,
    ) -> Result<Vec<(&'static str, Secret)>, TokenFailure> {
        let told = self.identity(cloud, row, "").await?;
        let access = self.learned(&document(&told), "access_token")?;
        let bearer = Secret::new(format!("Bearer {}", access.expose()));
        Ok(vec![("authorization", bearer)])
    }
}
