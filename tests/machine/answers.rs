//! Contract tests of the simulated package managers: see `tests/packages/contract.rs`.

#[path = "../packages/contract.rs"]
mod contract;
mod real;

use gpu_bootstrap::{
    host::{Host, ReadFiles},
    tools::{openpgp, packages::Manager},
};
use toml::Table;

use crate::{
    build::describe,
    kernel,
    machine::Machine,
    state::{PackageLock, lock},
};

/// The repository configuration files of both package managers.
const FILES: [(&str, &str); 3] = rows! {
    "/etc/apt/sources.list.d/debian.sources",
        "Types: deb\nURIs: http://packages.example.org/demo\nSuites: stable\nComponents: main\n\
         Signed-By: /usr/share/keyrings/demo.gpg\n";
    "/etc/yum.repos.d/almalinux-baseos.repo",
        "[demo]\nname=demo\nbaseurl=http://packages.example.org/demo\nenabled=1\ngpgcheck=1\n\
         repo_gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/demo\n";
    "/etc/dnf/dnf.conf",
        "[main]\ngpgcheck=1\ninstallonly_limit=3\nclean_requirements_on_remove=True\nbest=True\n\
         skip_if_unavailable=False\n";
};
const KEYRINGS: [&str; 2] = ["/usr/share/keyrings/demo.gpg", "/etc/pki/rpm-gpg/demo"];
const LOCKS: (&str, &str) = (
    "/etc/dnf/plugins/versionlock.conf",
    "[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n",
);

/// The in-memory machine.
struct Imitation(Machine);

impl Imitation {
    fn new(manager: Manager) -> Self {
        let mut about = describe(
            match manager {
                Manager::Apt => "debian-12-h100",
                Manager::Dnf => "almalinux-9-l4-archive",
            },
            Table::new(),
        );
        about.archive = "contract".to_owned();
        about.packages.clear();
        let files = FILES.into_iter().chain([LOCKS]);
        about
            .files
            .extend(files.map(|(path, text)| (path.to_owned(), text.to_owned())));
        let imitation = Self(Machine::new(about));
        // DKMS compiles a module if headers are installed.
        let files = &imitation.0.fakes.files;
        let running = kernel::running(files);
        files.put_directory(&format!("/lib/modules/{running}/build"), 0o755);
        imitation.trust(1);
        imitation
    }

    /// The keyring contains one of the two test keys.
    fn trust(&self, at: usize) {
        let keys = openpgp::parse(include_bytes!("../keys/two.asc")).expect("the test keys");
        for path in KEYRINGS {
            self.0.fakes.files.put(path, keys.keys[at].armoured.clone());
        }
    }
}

impl contract::Machine for Imitation {
    fn host(&self) -> Host {
        self.0.host()
    }

    fn happens(&self, what: &str) {
        let files = &self.0.fakes.files;
        let mut state = lock(&self.0.state);
        let faults = &mut state.faults;
        match what {
            "the server is down" => {
                faults.network = Some("Could not connect to packages.example.org:80".to_owned());
            }
            "the server's name is unknown" => {
                faults.network =
                    Some("Temporary failure resolving 'packages.example.org'".to_owned());
            }
            "packages are gone" => {
                faults.download = Some(match self.0.about.rpm {
                    None => "404  Not Found".to_owned(),
                    Some(_) => "Status code: 404 for http://packages.example.org/demo".to_owned(),
                });
            }
            "the mirror is in mid-sync" => faults.half_synced = 1,
            "the key is another" => {
                drop(state);
                self.trust(0);
            }
            "the suite is gone" => state.archive.repos.clear(),
            // The simulation has no cache of installed packages.
            "the cache is cleaned" => {}
            "scripts fail" => faults.dkms = true,
            "scripts succeed" => faults.dkms = false,
            "another one works" => {
                faults.package_lock = Some(PackageLock {
                    pid: 812,
                    program: "python3".to_owned(),
                    seconds: None,
                });
            }
            "dpkg was killed" => files.put("/var/lib/dpkg/updates/0001", ""),
            "the configuration is changed" => {
                assert!(files.exists("/etc/demo/app.conf".into()).expect("files"));
                files.put("/etc/demo/app.conf", "mine\n");
            }
            other => panic!("unknown event `{other}`"),
        }
    }

    fn put(&self, path: &str, text: String) {
        self.0.fakes.files.put(path, text);
    }
}

fn compare(manager: Manager) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    real::record(&runtime, manager);
    runtime.block_on(contract::compare(
        manager,
        || Imitation::new(manager),
        |_, _| true,
    ));
}

#[test]
fn simulated_apt_behaves_like_real_apt() {
    compare(Manager::Apt);
}

#[test]
fn simulated_dnf_behaves_like_real_dnf() {
    compare(Manager::Dnf);
}
