//! A rolling upgrade of a fleet: 40 nodes in parallel, with a fleet lock for three of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    thread,
};

use gpu_bootstrap::{
    host::{HttpRequest, HttpResponse},
    tools::fleetlock::node_id,
};

use crate::{
    fleetlock::{LockServer, locked, sender},
    machine::{Machine, Ran},
    maintenance::{
        AFTER, BEFORE, FAILED, SERVER, annotation, assert_stayed, driver, is_cordoned,
        node_with_id, resumed, run,
    },
    scenarios::told,
    state::{Shared, lock},
};

const SLOTS: usize = 3;

/// The nodes of a fleet share a lock server.
struct Fleet {
    server: LockServer,
    /// The cluster state of each node, by its ID on the server.
    nodes: Mutex<BTreeMap<String, Shared>>,
    /// The number of nodes that run, and do not wait for the lock.
    running: Mutex<usize>,
    /// A node has released the lock, or its run has ended.
    changed: Condvar,
    /// The maximum number of nodes that were out of service at the same time.
    most_out: Mutex<usize>,
    /// Nodes that were out of service without the lock.
    wrong: Mutex<Vec<String>>,
}

struct Node {
    machine: Machine,
    /// Its new driver fails the validation.
    fails: bool,
}

/// A node that runs.
struct Running<'f>(&'f Fleet);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *locked(&self.0.running) -= 1;
        self.0.changed.notify_all();
    }
}

impl Fleet {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            server: LockServer::real_or_new(SLOTS),
            nodes: Mutex::default(),
            running: Mutex::default(),
            changed: Condvar::new(),
            most_out: Mutex::default(),
            wrong: Mutex::default(),
        })
    }

    /// Installs the first driver on these nodes.
    fn install(self: &Arc<Self>, count: usize, failing: &[usize]) -> Vec<Node> {
        let prepare = |number: usize| {
            let id = format!("{number:032x}");
            let machine = node_with_id(&id);
            let id = node_id(&id).expect("an ID");
            locked(&self.nodes).insert(id, machine.state.clone());
            let fleet = self.clone();
            (machine.fakes.http).serve_with(SERVER, move |request| fleet.respond(request));
            Node {
                machine,
                fails: failing.contains(&number),
            }
        };
        in_threads((0..count).collect(), prepare)
    }

    /// Responds to a request for the lock. A node waits here until another one has released it, or until no node is left that
    /// could release it. Time only passes on the clock of each node, so the node would otherwise time out immediately.
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        self.count();
        let id = sender(request);
        let acquires = request.url.ends_with("/v1/pre-reboot");
        let is_out = is_cordoned(&locked(&self.nodes)[&id]);
        // It is cordoned after it has acquired the lock, and uncordoned before it releases it.
        if is_out && !(acquires && self.server.holders().contains(&id)) {
            locked(&self.wrong).push(request.url.clone());
        }
        if !acquires {
            let response = self.server.answer(SERVER, request);
            // A node that has just been refused waits when it has released this mutex.
            drop(locked(&self.running));
            self.changed.notify_all();
            return response;
        }
        let mut running = locked(&self.running);
        loop {
            let response = self.server.answer(SERVER, request);
            if response.status == 200 || *running == 1 {
                return response;
            }
            *running -= 1;
            running = self
                .changed
                .wait(running)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            *running += 1;
        }
    }

    /// Upgrades these nodes at the same time, until each one is finished, has failed, or did not get the lock.
    fn upgrade(&self, nodes: &[&Node]) -> Vec<Ran> {
        *locked(&self.running) = nodes.len();
        in_threads(nodes.to_vec(), |node| {
            let _running = Running(self);
            self.upgrade_one(node)
        })
    }

    fn upgrade_one(&self, node: &Node) -> Ran {
        let machine = &node.machine;
        let options = ["--reboot", "--set", "fleet.lock-timeout=2m"];
        let mut ran = run(machine, "upgrade", &[&AFTER[..], &options].concat());
        self.count();
        if node.fails {
            lock(&machine.state).faults.bad_driver = Some("595".to_owned());
        }
        while ran.exit == 8 {
            ran = resumed(machine).expect("a resume unit");
        }
        ran
    }

    /// Counts the nodes that are out of service. No other node gets the lock in the meantime.
    fn count(&self) {
        let _no_grants = locked(&self.running);
        let nodes = locked(&self.nodes).clone();
        let out = nodes.values().filter(|state| is_cordoned(state)).count();
        let mut most = locked(&self.most_out);
        *most = out.max(*most);
    }
}

/// Runs work for all items at the same time, and returns the results in their order.
fn in_threads<I: Send, R: Send>(items: Vec<I>, work: impl Fn(I) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let start = |item| scope.spawn(move || work(item));
        let threads: Vec<_> = items.into_iter().map(start).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, R>| thread.join().expect("no panic");
        threads.into_iter().map(end).collect()
    })
}

#[test]
fn rollout_stops_when_failed_nodes_hold_all_slots() {
    let fleet = Fleet::new();
    let nodes = fleet.install(40, &[4, 11, 17]);
    let (first, later) = nodes.split_at(30);

    // The three nodes fail one after the other, and each one keeps its slot.
    let (mut waiting, mut failed, mut upgraded) = (Vec::new(), Vec::new(), 0);
    let first: Vec<&Node> = first.iter().collect();
    for (node, ran) in first.iter().zip(fleet.upgrade(&first)) {
        let machine = &node.machine;
        match ran.exit {
            0 => {
                assert!(!node.fails && driver(machine).starts_with("595."));
                assert!(!is_cordoned(&machine.state));
                upgraded += 1;
            }
            6 => {
                assert!(node.fails && driver(machine).starts_with("580."));
                assert!(is_cordoned(&machine.state));
                assert!(annotation(machine, FAILED).is_some());
                failed.push(*node);
            }
            _ => {
                assert_stayed(machine, &ran, "all_slots_full");
                waiting.push(*node);
            }
        }
    }
    assert_eq!(failed.len(), SLOTS);
    assert_eq!(fleet.server.holders().len(), SLOTS);

    // The next nodes do not start.
    let later: Vec<&Node> = later.iter().collect();
    for (node, ran) in later.iter().zip(fleet.upgrade(&later)) {
        assert_stayed(&node.machine, &ran, "all_slots_full");
    }
    waiting.extend(later);

    // An administrator returns one of the failed nodes to service with its previous driver, and the rollout continues.
    let repaired = &failed[0].machine;
    let ran = run(repaired, "upgrade", &BEFORE);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(!is_cordoned(&repaired.state));
    for (node, ran) in waiting.iter().zip(fleet.upgrade(&waiting)) {
        assert_eq!(ran.exit, 0, "{}", told(&ran));
        assert!(driver(&node.machine).starts_with("595."));
        upgraded += 1;
    }
    assert_eq!(upgraded, 37);
    assert_eq!(fleet.server.holders().len(), 2);
    assert_eq!(*locked(&fleet.most_out), SLOTS);
    assert_eq!(*locked(&fleet.wrong), [""; 0]);
}
