//! The identity of an instance as a bearer token from the metadata service.

use super::{Clouds, TokenFailure, document};
use crate::model::{
    clouds::{CloudRow, SecretRow},
    secret::Secret,
};

impl Clouds<'_> {
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
