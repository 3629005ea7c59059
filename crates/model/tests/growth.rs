//! What a service and an event cost, counted in allocations: it must not depend on how many services there are.
#![allow(clippy::unwrap_used, unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroU16;

use kube_proxy_model::{Event, Family, Kind, Policy, ServiceType};
use support::*;

/// Counts what the current thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn note(allocations: usize, bytes: isize) {
    // a thread that is ending has no counters any more
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let _ = BYTES.try_with(|count| count.set(count.get() + bytes));
}

// SAFETY: everything is handed on to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size().cast_signed());
        // SAFETY: the caller's promise
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, -layout.size().cast_signed());
        // SAFETY: the caller's promise
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// `services` services with ten endpoints each.
fn world(services: u16) -> World {
    let mut world = World::of([]);
    for number in 0..services {
        world.tell([served(number, 0), changed(number, 0)]);
    }
    world.tell(all_known());
    world.0.take_changes();
    world
}

fn served(number: u16, generation: u16) -> Event {
    let mut service = service(&format!("s{number}"), 1);
    service.cluster_ips = vec![ip(&format!("2001:db8:c:{generation:x}::{number:x}"))];
    Event::Service(service)
}

fn changed(number: u16, generation: u16) -> Event {
    let endpoint = |index: u16| remote(&format!("2001:db8::{number:x}:{:x}", index + generation));
    Event::Slice(slice(&format!("s{number}-1"), &format!("s{number}"), (0..10).map(endpoint).collect()))
}

/// Allocations of ten changes of the endpoints and ten of the address of a service, each taken and resolved.
fn allocations_of_changes(world: &mut World) -> usize {
    let events: Vec<_> =
        (1..=10).flat_map(|generation| [changed(7, generation), served(7, generation)]).collect();
    let before = ALLOCATIONS.get();
    for event in events {
        world.0.apply(event);
        for key in world.0.take_changes().services {
            let service = world.0.resolve(&key, Family::V6).unwrap();
            assert_eq!(service.ports[0].cluster.len(), 10);
        }
    }
    ALLOCATIONS.get() - before
}

#[test]
fn a_change_costs_the_same_among_many_services_as_among_few() {
    let (few, many) = (allocations_of_changes(&mut world(50)), allocations_of_changes(&mut world(5000)));
    assert!(many <= few + few / 5, "{few} allocations among 50 services, {many} among 5,000");
}

#[test]
fn a_service_with_ten_endpoints_takes_little_memory() {
    const SERVICES: u16 = 5000;
    let before = BYTES.get();
    let _world = world(SERVICES);
    let each = (BYTES.get() - before) / isize::from(SERVICES.cast_signed());
    assert!(each < 1000, "{each} bytes for a service with ten endpoints");
    println!("{each} bytes for a service with ten endpoints");
}

/// Two services that want one node port come and go, with hints, health checks, conflicts and all; `round` names them.
fn come_and_go(world: &mut World, round: u16) {
    let [old, new] = ["old", "new"].map(|name| format!("{name}{round}"));
    for (name, host) in [(&old, 1), (&new, 2)] {
        let mut service = node_port_service(name, host, 30080);
        service.kind = ServiceType::LoadBalancer;
        service.external_policy = Policy::Local;
        service.health_check_node_port = NonZeroU16::new(32000);
        let zone = format!("zone-{round}");
        let endpoints = vec![for_zones(local("198.51.100.1"), &[&zone]), draining(remote("198.51.100.2"))];
        world.tell([Event::Service(service), Event::Slice(slice(name, name, endpoints))]);
    }
    assert_eq!(world.dirty().len(), 2);
    assert_eq!(world.0.take_conflicts().len(), 1);
    world.tell([Event::ServiceDeleted(key(&old)), Event::SliceDeleted(key(&new))]);
    world.tell(
        [Kind::Service, Kind::Slice].into_iter().flat_map(|kind| [Event::Begin(kind), Event::End(kind)]),
    );
    assert_eq!(world.dirty().len(), 2);
    assert_eq!(world.0.take_conflicts(), []);
}

#[test]
fn services_that_come_and_go_leave_nothing_behind() {
    let mut world = World::of([]);
    (0..50).for_each(|round| come_and_go(&mut world, round));
    let before = BYTES.get();
    (50..1000).for_each(|round| come_and_go(&mut world, round));
    // a table may take more room by chance
    let more = BYTES.get() - before;
    assert!(more < 950 * 8, "{more} bytes more after 950 rounds");
}
