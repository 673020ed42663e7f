/* Allocates by a wrapper whose name says nothing, one that is well known, and a constructor of its own. */
#include <stdlib.h>
#include <string.h>

#define APART __attribute__((noinline, noclone))

static void *volatile kept;

/* A wrapper: it passes its argument on. */
APART void *grab(size_t size) {
	void *block = malloc(size);
	if (!block)
		abort();
	memset(block, 1, size);
	return block;
}

/* A wrapper that many programs have. */
APART void *xmalloc(size_t size) {
	void *block = malloc(size);
	if (!block)
		abort();
	memset(block, 1, size);
	return block;
}

/* A constructor: whoever calls it, its objects have one size. */
APART void *make_node(void) {
	void *node = malloc(200);
	if (!node)
		abort();
	memset(node, 1, 200);
	return node;
}

#define CALLER(name, call) \
	APART void name(void) { \
		for (int i = 0; i < 50; i++) { \
			kept = call; \
			free(kept); \
		} \
	}

CALLER(read_header, grab(64))
CALLER(read_body, grab(4096))
CALLER(read_trailer, grab(600))
CALLER(open_cache, xmalloc(1000))
CALLER(parse, make_node())
CALLER(clone, make_node())
CALLER(merge, make_node())

int main(void) {
	read_header();
	read_body();
	read_trailer();
	open_cache();
	parse();
	clone();
	merge();
	return 0;
}
