//! The contents of initramfs images. Listing an image decompresses all of it, so later snapshots keep the listing until the
//! image changes.

use std::sync::{Mutex, PoisonError};

use super::State;
use crate::host::{ExecError, FileKind, Query, Stat};

/// The listings of this run, by command and by the file that was listed.
pub(super) type Listings = Mutex<Vec<(Query, Stat, String)>>;

impl State {
    /// Returns the output of a command that lists an image. The command is executed again only if the image has changed.
    /// Generators replace an image, so its inode then differs.
    ///
    /// # Errors
    /// If the command fails.
    pub async fn initramfs(&self, list: &Query, image: &Stat) -> Result<String, ExecError> {
        let lock = || (self.listings.lock()).unwrap_or_else(PoisonError::into_inner);
        let is_it = |(query, stat, _): &&(Query, Stat, String)| query == list && stat == image;
        if let Some((_, _, known)) = lock().iter().find(is_it) {
            return Ok(known.clone());
        }
        let output = self.host.reader().query(list).await?.success(list.cmd())?;
        // The metadata of a symlink does not change with its target.
        if image.kind == FileKind::File {
            lock().push((list.clone(), image.clone(), output.stdout.clone()));
        }
        Ok(output.stdout)
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use crate::{
        host::{ReadFiles as _, Stat, fake},
        steps::fixtures::{facts, state},
        tools::initramfs,
    };

    #[tokio::test]
    async fn unchanged_image_is_listed_once() {
        let (host, fakes) = fake::host();
        fakes.exec.on("lsinitramfs", |_, _| fake::ok("etc\n"));
        let image = Utf8Path::new("/boot/initrd.img-6.1.0");
        let list = initramfs::of(&fakes.files).unwrap().list(image);
        let mut state = state(&host, facts());
        fakes.files.put(image.as_str(), "");
        let old = fakes.files.stat(image).unwrap().unwrap();
        let inode = old.inode + 1;
        let rebuilt = Stat {
            inode,
            ..old.clone()
        };
        for (stat, count) in [(&old, 1), (&old, 1), (&rebuilt, 2)] {
            assert_eq!(state.initramfs(&list, stat).await.unwrap(), "etc\n");
            assert_eq!(fakes.exec.log().len(), count);
            state = state.next();
        }
    }
}
