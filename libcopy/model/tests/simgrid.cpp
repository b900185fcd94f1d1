// SPDX-License-Identifier: MIT OR Apache-2.0

// Simulates a case of tests/simgrid.rs with SimGrid, and prints when each activity ends, one a line.
//
// The case comes from standard input, as words: the number of resources and the capacity of each;
// the number of activities, and of each its work, its latency, the cap on its rate (0: none), the
// number of its uses and of each the resource and the weight (a whole number), the number of
// activities that it comes after and their indices.
//
// A resource is a link, and an activity an actor: it waits for the others, sleeps for its latency,
// and sends its work over a route of the links that it uses, between two hosts that only activities
// with the same route share. SimGrid's own latency is not used: with it, shares depend on round-trip
// times, as TCP's do.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <simgrid/s4u.hpp>

namespace sg4 = simgrid::s4u;

namespace {

struct Activity {
    double work;
    double latency;
    double cap;
    std::vector<std::pair<int, int>> uses;
    std::vector<std::size_t> after;
    double end = -1;
    std::vector<std::size_t> dependents;
    sg4::SemaphorePtr missing;
    std::pair<sg4::Host *, sg4::Host *> hosts{nullptr, nullptr};
};

template <typename T> T read()
{
    T value;
    if (!(std::cin >> value)) {
        std::fprintf(stderr, "simgrid: the case ends too early, or has a wrong word\n");
        std::exit(2);
    }
    return value;
}

std::vector<Activity> activities;

void act(std::size_t index)
{
    Activity &own = activities[index];
    for (std::size_t i = 0; i < own.after.size(); i++)
        own.missing->acquire();
    if (own.latency > 0)
        sg4::this_actor::sleep_for(own.latency);
    if (own.work > 0) {
        auto comm = sg4::Comm::sendto_init(own.hosts.first, own.hosts.second);
        comm->set_payload_size(static_cast<uint64_t>(own.work));
        comm->wait();
    }
    own.end = sg4::Engine::get_clock();
    for (std::size_t dependent : own.dependents)
        activities[dependent].missing->release();
}

} // namespace

int main(int argc, char **argv)
{
    sg4::Engine engine(&argc, argv);
    // Max-min fair shares of the capacities, without what models TCP.
    for (const char *option :
         {"network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1",
          "network/weight-S:0", "network/crosstraffic:0", "network/TCP-gamma:0",
          "maxmin/precision:1e-9", "surf/precision:1e-12"})
        sg4::Engine::set_config(option);
    auto *zone = sg4::create_full_zone("machine");

    std::vector<sg4::Link *> links(read<std::size_t>());
    for (std::size_t i = 0; i < links.size(); i++)
        links[i] = zone->create_link("link" + std::to_string(i), read<double>())
                       ->set_latency(0)
                       ->seal();

    activities.resize(read<std::size_t>());
    std::map<std::pair<double, std::vector<std::pair<int, int>>>, std::pair<sg4::Host *, sg4::Host *>>
        routes;
    for (std::size_t index = 0; index < activities.size(); index++) {
        Activity &own = activities[index];
        own.work = read<double>();
        own.latency = read<double>();
        own.cap = read<double>();
        own.uses.resize(read<std::size_t>());
        std::vector<sg4::LinkInRoute> route;
        for (auto &[link, weight] : own.uses) {
            link = read<int>();
            weight = read<int>();
            // A link that a route passes twice carries its bytes twice.
            for (int i = 0; i < weight; i++)
                route.emplace_back(links.at(link));
        }
        auto &hosts = routes[{own.cap, own.uses}];
        if (!hosts.first) {
            const std::string name = std::to_string(routes.size());
            // Communications between hosts ignore set_rate() (SimGrid 3.32). A link that does not
            // share its bandwidth among those that pass it is a cap for each.
            if (own.cap > 0)
                route.emplace_back(zone->create_link("cap" + name, own.cap)
                                       ->set_latency(0)
                                       ->set_sharing_policy(sg4::Link::SharingPolicy::FATPIPE)
                                       ->seal());
            hosts.first = zone->create_host("from" + name, 1e9)->seal();
            hosts.second = zone->create_host("to" + name, 1e9)->seal();
            zone->add_route(hosts.first->get_netpoint(), hosts.second->get_netpoint(), nullptr,
                            nullptr, route, false);
        }
        own.hosts = hosts;
        own.after.resize(read<std::size_t>());
        for (auto &after : own.after)
            after = read<std::size_t>();
        own.missing = sg4::Semaphore::create(0);
    }
    zone->seal();
    for (std::size_t index = 0; index < activities.size(); index++) {
        for (std::size_t after : activities[index].after)
            activities.at(after).dependents.push_back(index);
        sg4::Actor::create("activity" + std::to_string(index), activities[index].hosts.first, act,
                           index);
    }
    engine.run();
    for (const Activity &activity : activities)
        std::printf("%.17g\n", activity.end);
}
