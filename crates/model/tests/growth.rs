//! What a service and an event cost, counted in allocations: it must not depend on how many services there are.
#![allow(clippy::unwrap_used, unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kube_proxy_model::{Event, Family};
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
        let mut service = service(&format!("s{number}"), 1);
        service.cluster_ips = vec![ip(&format!("2001:db8:c::{number:x}"))];
        world.tell([Event::Service(service), changed(number, 0)]);
    }
    world.tell(all_known());
    world.0.take_changes();
    world
}

fn changed(number: u16, generation: u16) -> Event {
    let endpoint = |index: u16| remote(&format!("2001:db8::{number:x}:{:x}", index + generation));
    Event::Slice(slice(&format!("s{number}-1"), &format!("s{number}"), (0..10).map(endpoint).collect()))
}

/// Allocations of ten changes, each taken and resolved.
fn allocations_of_changes(world: &mut World) -> usize {
    let events: Vec<_> = (1..=10).map(|generation| changed(7, generation)).collect();
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
fn a_service_with_ten_endpoints_takes_little_memory_and_gives_it_back() {
    const SERVICES: u16 = 5000;
    let before = BYTES.get();
    let mut world = world(SERVICES);
    let each = (BYTES.get() - before) / isize::from(SERVICES.cast_signed());
    assert!(each < 1000, "{each} bytes for a service with ten endpoints");
    for number in 0..SERVICES {
        world.tell([
            Event::ServiceDeleted(key(&format!("s{number}"))),
            Event::SliceDeleted(key(&format!("s{number}-1"))),
        ]);
    }
    world.0.take_changes();
    // tables keep their room, nothing else stays
    let left = (BYTES.get() - before) / isize::from(SERVICES.cast_signed());
    assert!(left < each / 3, "{left} of {each} bytes stayed for each service that is gone");
}
