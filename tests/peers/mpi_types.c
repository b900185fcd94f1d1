// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Builds MPI datatypes from type expressions (see libcopy/datatype/src/expr.rs) and packs, unpacks
 * and copies with them: a peer of `libcopy bench types` and the other side of the test that
 * compares random types. See type_peer.h for what it is told.
 */
#include "type_peer.h"

#include <ctype.h>
#include <limits.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>

static MPI_Datatype type = MPI_DATATYPE_NULL, to_type = MPI_DATATYPE_NULL;

/* Where the parser is, and where it goes when something is wrong. */
static const char *at;
static jmp_buf wrong;
static char complaint[256];

/* An expression that is wrong leaks what it has built so far: that does not matter here. */
static _Noreturn void give_up(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vsnprintf(complaint, sizeof(complaint), format, values);
	va_end(values);
	longjmp(wrong, 1);
}

static void check(int code)
{
	char text[MPI_MAX_ERROR_STRING];
	int length;

	if (code == MPI_SUCCESS)
		return;
	MPI_Error_string(code, text, &length);
	for (char *c = text; *c; c++)
		if (*c == '\n')
			*c = ' ';
	give_up("MPI: %.200s", text);
}


#define NAMES(X)                                                                               \
	X(CHAR) X(SIGNED_CHAR) X(UNSIGNED_CHAR) X(BYTE) X(PACKED) X(WCHAR) X(SHORT)            \
	X(UNSIGNED_SHORT) X(INT) X(UNSIGNED) X(LONG) X(UNSIGNED_LONG) X(LONG_LONG_INT)         \
	X(UNSIGNED_LONG_LONG) X(FLOAT) X(DOUBLE) X(LONG_DOUBLE) X(C_BOOL) X(INT8_T) X(INT16_T) \
	X(INT32_T) X(INT64_T) X(UINT8_T) X(UINT16_T) X(UINT32_T) X(UINT64_T) X(AINT) X(OFFSET) \
	X(COUNT) X(C_FLOAT_COMPLEX) X(C_DOUBLE_COMPLEX) X(C_LONG_DOUBLE_COMPLEX) X(CXX_BOOL)   \
	X(CXX_FLOAT_COMPLEX) X(CXX_DOUBLE_COMPLEX) X(CXX_LONG_DOUBLE_COMPLEX) X(INTEGER)       \
	X(REAL) X(DOUBLE_PRECISION) X(COMPLEX) X(DOUBLE_COMPLEX) X(LOGICAL) X(CHARACTER)       \
	X(INTEGER1) X(INTEGER2) X(INTEGER4) X(INTEGER8) X(REAL4) X(REAL8) X(COMPLEX8)          \
	X(COMPLEX16) X(FLOAT_INT) X(DOUBLE_INT) X(LONG_INT) X(2INT) X(SHORT_INT)               \
	X(LONG_DOUBLE_INT) X(2REAL) X(2DOUBLE_PRECISION) X(2INTEGER)

static MPI_Datatype named(const char *name)
{
#define MATCH(known)                                                                           \
	if (!strcasecmp(name, #known))                                                         \
		return MPI_##known;
	NAMES(MATCH)
#ifdef MPI_INTEGER16
	MATCH(INTEGER16)
#endif
#ifdef MPI_REAL16
	MATCH(REAL16)
#endif
	return MPI_DATATYPE_NULL;
}

static void space(void)
{
	while (isspace((unsigned char)*at))
		at++;
}

static int eat(const char *what)
{
	space();
	if (strncmp(at, what, strlen(what)))
		return 0;
	at += strlen(what);
	return 1;
}

static void need(const char *what)
{
	if (!eat(what))
		give_up("'%s' expected at '%.20s'", what, at);
}

static long long number(void)
{
	char *end;
	long long value;

	errno = 0;
	value = strtoll(at, &end, 10);
	if (end == at || errno)
		give_up("a number expected at '%.20s'", at);
	at = end;
	return value;
}

static long long number_then_comma(void)
{
	long long value = number();

	need(",");
	return value;
}

/* A list of numbers, in all the forms that MPI wants them. */
struct list {
	int length, fits;
	long long *wide;
	int *narrow;
	MPI_Aint *address;
};

static void append(struct list *l, size_t *room, long long value)
{
	if ((size_t)l->length == *room) {
		*room = *room ? *room * 2 : 16;
		l->wide = realloc(l->wide, *room * sizeof(*l->wide));
		if (!l->wide)
			die("realloc");
	}
	l->wide[l->length++] = value;
}

static struct list list_then_comma(void)
{
	struct list l = { .fits = 1 };
	size_t room = 0;

	need("[");
	while (!eat("]")) {
		long long first = number();

		if (eat("*")) {
			for (long long n = number(); n > 0; n--)
				append(&l, &room, first);
		} else if (eat("..")) {
			long long end = number(), step = eat(":") ? number() : 1;

			for (; step > 0 ? first < end : first > end; first += step)
				append(&l, &room, first);
		} else {
			append(&l, &room, first);
		}
		if (!eat(",") && *at != ']')
			give_up("',' or ']' expected at '%.20s'", at);
	}
	need(",");
	l.narrow = malloc(((size_t)l.length + 1) * sizeof(*l.narrow));
	l.address = malloc(((size_t)l.length + 1) * sizeof(*l.address));
	if (!l.narrow || !l.address)
		die("malloc");
	for (int i = 0; i < l.length; i++) {
		l.fits &= l.wide[i] >= INT_MIN && l.wide[i] <= INT_MAX;
		l.narrow[i] = (int)l.wide[i];
		l.address[i] = (MPI_Aint)l.wide[i];
	}
	return l;
}

static void release(struct list *l)
{
	free(l->wide);
	free(l->narrow);
	free(l->address);
}

static void must_fit(int fits)
{
	if (!fits)
		give_up("a count beyond 31 bits, which this constructor of this MPI has not");
}

static int fits(long long value)
{
	return value >= INT_MIN && value <= INT_MAX;
}

/* Frees a type unless it is a predefined one. */
static void drop(MPI_Datatype *doomed)
{
	int integers, addresses, types, combiner;

	MPI_Type_get_envelope(*doomed, &integers, &addresses, &types, &combiner);
	if (combiner != MPI_COMBINER_NAMED)
		MPI_Type_free(doomed);
}

static MPI_Datatype parse(void);

static void word(char *into, size_t room)
{
	size_t n = 0;

	space();
	while (isalnum((unsigned char)*at) || *at == '_') {
		if (n + 1 < room)
			into[n++] = (char)tolower((unsigned char)*at);
		at++;
	}
	into[n] = 0;
}

static int order_then_comma(void)
{
	char name[16];

	word(name, sizeof(name));
	need(",");
	return strcmp(name, "c") ? MPI_ORDER_FORTRAN : MPI_ORDER_C;
}

static int distributions_then_comma(int *kinds, int *arguments, int most)
{
	int n = 0;

	need("[");
	while (!eat("]")) {
		char name[16];

		word(name, sizeof(name));
		if (n == most)
			give_up("too many dimensions");
		kinds[n] = !strcmp(name, "block")  ? MPI_DISTRIBUTE_BLOCK :
			   !strcmp(name, "cyclic") ? MPI_DISTRIBUTE_CYCLIC :
						     MPI_DISTRIBUTE_NONE;
		arguments[n] = MPI_DISTRIBUTE_DFLT_DARG;
		if (eat("(")) {
			arguments[n] = (int)number();
			need(")");
		}
		n++;
		eat(",");
	}
	need(",");
	return n;
}

static MPI_Datatype structure(void)
{
	struct list lengths = list_then_comma(), places = list_then_comma();
	MPI_Datatype *children = malloc(((size_t)lengths.length + 1) * sizeof(*children)), result;
	int n = 0;

	if (!children)
		die("malloc");
	need("[");
	while (!eat("]")) {
		if (n == lengths.length)
			give_up("more types than block lengths");
		children[n++] = parse();
		eat(",");
	}
	need(")");
	if (n != lengths.length || n != places.length)
		give_up("lists of different lengths");
	must_fit(lengths.fits);
	check(MPI_Type_create_struct(n, lengths.narrow, places.address, children, &result));
	for (int i = 0; i < n; i++)
		drop(&children[i]);
	free(children);
	release(&lengths);
	release(&places);
	return result;
}

/* A constructor with one child: what it was given stands before the child. */
static MPI_Datatype constructor(const char *name)
{
	MPI_Datatype child, result = MPI_DATATYPE_NULL;
	struct list a = { 0 }, b = { 0 }, c = { 0 };
	long long x = 0, y = 0, z = 0;
	int kinds[16], arguments[16], order = 0, dims = 0;

	if (!strcmp(name, "struct"))
		return structure();
	if (!strcmp(name, "contiguous")) {
		x = number_then_comma();
	} else if (!strcmp(name, "vector") || !strcmp(name, "hvector")) {
		x = number_then_comma();
		y = number_then_comma();
		z = number_then_comma();
	} else if (!strcmp(name, "indexed") || !strcmp(name, "hindexed")) {
		a = list_then_comma();
		b = list_then_comma();
		if (a.length != b.length)
			give_up("lists of different lengths");
	} else if (!strcmp(name, "indexed_block") || !strcmp(name, "hindexed_block")) {
		x = number_then_comma();
		b = list_then_comma();
	} else if (!strcmp(name, "subarray")) {
		a = list_then_comma();
		b = list_then_comma();
		c = list_then_comma();
		order = order_then_comma();
	} else if (!strcmp(name, "darray")) {
		x = number_then_comma();
		y = number_then_comma();
		a = list_then_comma();
		dims = distributions_then_comma(kinds, arguments, 16);
		b = list_then_comma();
		order = order_then_comma();
		if (dims != a.length || dims != b.length)
			give_up("lists of different lengths");
	} else if (!strcmp(name, "resized")) {
		x = number_then_comma();
		y = number_then_comma();
	} else if (strcmp(name, "dup")) {
		give_up("unknown constructor '%s'", name);
	}
	child = parse();
	need(")");

	if (!strcmp(name, "contiguous")) {
#if MPI_VERSION >= 4
		if (!fits(x))
			check(MPI_Type_contiguous_c(x, child, &result));
		else
#endif
			must_fit(fits(x)), check(MPI_Type_contiguous((int)x, child, &result));
	} else if (!strcmp(name, "vector")) {
#if MPI_VERSION >= 4
		if (!fits(x) || !fits(y) || !fits(z))
			check(MPI_Type_vector_c(x, y, z, child, &result));
		else
#endif
			must_fit(fits(x) && fits(y) && fits(z)),
				check(MPI_Type_vector((int)x, (int)y, (int)z, child, &result));
	} else if (!strcmp(name, "hvector")) {
#if MPI_VERSION >= 4
		if (!fits(x) || !fits(y))
			check(MPI_Type_create_hvector_c(x, y, z, child, &result));
		else
#endif
			must_fit(fits(x) && fits(y)),
				check(MPI_Type_create_hvector((int)x, (int)y, (MPI_Aint)z, child,
							      &result));
	} else if (!strcmp(name, "indexed")) {
		must_fit(a.fits && b.fits);
		check(MPI_Type_indexed(a.length, a.narrow, b.narrow, child, &result));
	} else if (!strcmp(name, "hindexed")) {
		must_fit(a.fits);
		check(MPI_Type_create_hindexed(a.length, a.narrow, b.address, child, &result));
	} else if (!strcmp(name, "indexed_block")) {
		must_fit(fits(x) && b.fits);
		check(MPI_Type_create_indexed_block(b.length, (int)x, b.narrow, child, &result));
	} else if (!strcmp(name, "hindexed_block")) {
		must_fit(fits(x));
		check(MPI_Type_create_hindexed_block(b.length, (int)x, b.address, child, &result));
	} else if (!strcmp(name, "subarray")) {
		if (a.length != b.length || a.length != c.length)
			give_up("lists of different lengths");
		must_fit(a.fits && b.fits && c.fits);
		check(MPI_Type_create_subarray(a.length, a.narrow, b.narrow, c.narrow, order,
					       child, &result));
	} else if (!strcmp(name, "darray")) {
		must_fit(a.fits && b.fits);
		check(MPI_Type_create_darray((int)x, (int)y, dims, a.narrow, kinds, arguments,
					     b.narrow, order, child, &result));
	} else if (!strcmp(name, "resized")) {
		check(MPI_Type_create_resized(child, (MPI_Aint)x, (MPI_Aint)y, &result));
	} else {
		check(MPI_Type_dup(child, &result));
	}
	release(&a);
	release(&b);
	release(&c);
	drop(&child);
	return result;
}

static MPI_Datatype parse(void)
{
	char name[40];
	MPI_Datatype found;

	word(name, sizeof(name));
	if (eat("("))
		return constructor(name);
	found = named(name);
	if (found == MPI_DATATYPE_NULL)
		give_up("this MPI has no type '%s'", name);
	return found;
}

static const char *build(const char *expression, int to, FILE *answer)
{
	static MPI_Datatype result;
	MPI_Datatype *place = to ? &to_type : &type;
	MPI_Count size, lb, extent, true_lb, true_extent;

	at = expression;
	if (setjmp(wrong))
		return complaint;
	result = parse();
	space();
	if (*at)
		give_up("the end expected at '%.20s'", at);
	check(MPI_Type_commit(&result));
	check(MPI_Type_size_x(result, &size));
	check(MPI_Type_get_extent_x(result, &lb, &extent));
	check(MPI_Type_get_true_extent_x(result, &true_lb, &true_extent));
	if (*place != MPI_DATATYPE_NULL)
		drop(place);
	*place = result;
	fprintf(answer, "type %lld %lld %lld %lld %lld\n", (long long)size, (long long)lb,
		(long long)extent, (long long)true_lb, (long long)true_extent);
	return NULL;
}

static void pack(void)
{
	int position = 0;

	MPI_Pack(user.data + origin, elements, type, packed.data, (int)packed_length, &position,
		 MPI_COMM_SELF);
}

static void unpack(void)
{
	int position = 0;

	MPI_Unpack(packed.data, (int)packed_length, &position, user.data + origin, elements, type,
		   MPI_COMM_SELF);
}

static const char *external(int unpack)
{
	MPI_Aint position = 0, length = (MPI_Aint)packed_length;
	int code;

	if (unpack)
		code = MPI_Unpack_external("external32", packed.data, length, &position,
					   user.data + origin, elements, type);
	else
		code = MPI_Pack_external("external32", user.data + origin, elements, type,
					 packed.data, length, &position);
	if (code != MPI_SUCCESS)
		return "this MPI refuses it";
	return position == length ? NULL : "another length";
}

/* MPI's way to copy from one layout into another: a message to oneself. */
static void copy(void)
{
	MPI_Sendrecv(user.data + origin, elements, type, 0, 0, target.data + origin, elements,
		     to_type, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
	const struct peer c = { .type = build,
				      .pack = pack,
				      .unpack = unpack,
				      .copy = copy,
				      .external = external };
	char version[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;

	if (argc != 3 || strcmp(argv[1], "--control")) {
		fprintf(stderr, "usage: mpirun -n 1 mpi_types --control SOCKET\n"
				"(see `libcopy bench types`)\n");
		return 2;
	}
	MPI_Init(&argc, &argv);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
	MPI_Get_library_version(version, &length);
	version[strcspn(version, "\n,")] = 0;
	for (char *v = version; *v; v++)
		if (*v == '\t')
			*v = ' ';
	obey(argv[2], version, &c);
	MPI_Finalize();
	return 0;
}
