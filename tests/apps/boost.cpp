// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Boost.MPI, one of the applications of scripts/apps: serialised objects and derived datatypes in broadcasts,
 * gathers, alltoalls and messages, ROUNDS times. Prints a hash of what came. A gather, a broadcast and a
 * message have PARTICLES of 32 bytes, an alltoall has NUMBERS for each rank, and a serialised broadcast STRINGS.
 *
 * usage: boost PARTICLES NUMBERS STRINGS ROUNDS
 */
#include <boost/mpi.hpp>
#include <boost/serialization/string.hpp>
#include <boost/serialization/vector.hpp>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace mpi = boost::mpi;

struct particle {
	double place[3];
	int kind;
	float charge;

	template <class Archive> void serialize(Archive &archive, unsigned)
	{
		archive & place & kind & charge;
	}
};
BOOST_IS_MPI_DATATYPE(particle)

static std::uint64_t sum = 0;

static void add(double value)
{
	sum = (sum ^ static_cast<std::uint64_t>(value * 1024)) * 0x9e3779b97f4a7c15u;
}

int main(int argc, char **argv)
{
	mpi::environment environment(argc, argv);
	mpi::communicator world;
	const int rank = world.rank(), size = world.size();
	if (argc != 5) {
		if (!rank)
			std::cerr << "usage: boost PARTICLES NUMBERS STRINGS ROUNDS\n";
		environment.abort(2);
	}
	const int particles = std::atoi(argv[1]), numbers = std::atoi(argv[2]), strings = std::atoi(argv[3]);
	const int rounds = std::atoi(argv[4]);
	std::vector<particle> own(particles), all, from(particles);
	std::vector<std::string> words;

	for (int round = 0; round < rounds; round++) {
		for (std::size_t i = 0; i < own.size(); i++)
			own[i] = { { i * 0.5, rank + 1.0, round * 2.0 }, static_cast<int>(i) % 7, 0.25f * rank };
		mpi::gather(world, own.data(), static_cast<int>(own.size()), all, 0);
		mpi::broadcast(world, own.data(), static_cast<int>(own.size()), round % size);
		mpi::request out = world.isend((rank + 1) % size, 5, own.data(), static_cast<int>(own.size()));
		world.recv((rank + size - 1) % size, 5, from.data(), static_cast<int>(from.size()));
		out.wait();
		words.assign(strings, "round " + std::to_string(round) + " of rank " + std::to_string(rank));
		mpi::broadcast(world, words, (round + 1) % size);
		std::vector<double> mine(numbers * size, rank + 0.5), got(numbers * size);
		mpi::all_to_all(world, mine.data(), numbers, got.data());
		for (const particle &p : from)
			add(p.place[0] + p.place[1] + p.place[2] + p.kind + p.charge);
		for (const particle &p : all)
			add(p.place[1]);
		for (const std::string &word : words)
			add(static_cast<double>(word.size()));
		for (double value : got)
			add(value);
	}
	std::uint64_t whole = 0;
	mpi::reduce(world, sum, whole, std::bit_xor<std::uint64_t>(), 0);
	if (!rank)
		std::cout << "hash " << whole << '\n';
	return 0;
}
