/*
 * Which states are taken for one, and which steps are taken: C that spin takes into
 * its search. It changes no rule: without SORTED none of it is there. The head of
 * promise.pml says why.
 */

/* The end of each step, and of what else must happen somewhere: a line of output if it
   has. What spin calls unreached knows nothing of what is inside of a d_step. */
#ifdef SORTED
#define done(what) c_code { REACHED(what) sortSites(); }
#define happens(what) c_code { REACHED(what) }
#define REACHED(what) static int once; if (!once++) printf("reached: %s\n", #what);
#else
#define done(what) skip
#define happens(what) skip
#endif

#ifdef SORTED
c_code {
/* A state in short: what each site has, and what each pair. */
struct brief { unsigned site[N]; uchar link[N][N]; };

static void take(struct brief *b) {
	for (int i = 0; i < N; i++) {
		b->site[i] = now.phase[i] | now.round[i] << 3 | now.pending[i] << 5 | now.on[i] << 6 |
			now.held[i] << 7 | now.left[i] << 8 | now.absent[i] << 9 | now.owed[i] << 10;
		for (int j = 0; j < N; j++)
			b->link[i][j] = now.aged[i*N+j] | now.sent[i*N+j] << 1 | now.bound[i*N+j] << 3 | now.seen[i*N+j] << 5;
	}
}

/* Which numbering of the sites but 0 gives the least. */
static const uchar *least(const struct brief *b) {
	static const uchar as[][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 1, 3, 2}, {0, 3, 2, 1}, {0, 2, 3, 1}, {0, 3, 1, 2}};
	const uchar *x = as[0];
	for (int p = 1; p < (N > 3 ? 6 : 2); p++) {
		const uchar *y = as[p];
		int d = 0;
		for (int i = 1; i < N && !d; i++)
			d = (int)b->site[y[i]] - (int)b->site[x[i]];
		for (int i = 0; i < N && !d; i++)
			for (int j = 0; j < N && !d; j++)
				d = b->link[y[i]][y[j]] - b->link[x[i]][x[j]];
		if (d < 0)
			x = y;
	}
	return x;
}

#ifdef KEEP
/* f(s) of the head, into the file kept: each once. */
static void keep(struct brief b) {
	static uchar *known[1 << 20];
	static FILE *file;
	static int kept;
	uchar rec[1 + 2*N + N*N], *r = rec;
	unsigned h = 5381;
	for (int i = 0; i < N; i++) /* the asker */
		for (int j = 0; j < N; j++) { /* the asked */
			unsigned n = b.site[i] >> 3 & 3, dead = (b.site[i] & 7) == idle || b.link[i][j] & 1;
			if (dead || (b.link[j][i] >> 3 & 3) != n)
				b.link[j][i] &= ~(3 << 3);
			if (dead || (b.link[j][i] >> 5 & 3) != n)
				b.link[j][i] &= ~(3 << 5);
			if (j == 0 && (dead || (b.site[i] >> 10 & 3) != n))
				b.site[i] &= ~(3 << 10);
		}
	const uchar *x = least(&b);
	*r++ = now.crashed | now.quiet << 1;
	for (int i = 0; i < N; i++) {
		*r++ = b.site[x[i]], *r++ = b.site[x[i]] >> 8;
		for (int j = 0; j < N; j++)
			*r++ = b.link[x[i]][x[j]];
	}
	for (size_t i = 0; i < sizeof rec; i++)
		h = (h ^ rec[i]) * 16777619;
	h ^= h >> 15;
	for (;; h++) {
		uchar **at = &known[h % (1 << 20)];
		if (*at && memcmp(*at, rec, sizeof rec) != 0)
			continue;
		if (*at)
			return;
		*at = memcpy(malloc(sizeof rec), rec, sizeof rec);
		break;
	}
	if (++kept > 3 << 18) { /* a search in a full table has no end */
		printf("too many to keep\n");
		exit(1);
	}
	if (!file)
		file = fopen("kept", "w");
	fwrite(rec, sizeof rec, 1, file);
}
#endif

static void sortSites(void) {
	struct brief b;
	take(&b);
#ifdef KEEP
	keep(b);
#endif
	const uchar *x = least(&b);
	if (x[1] == 1 && x[2] == 2)
		return;
	for (int i = 0; i < N; i++) {
		unsigned s = b.site[x[i]];
		now.phase[i] = s & 7; now.round[i] = s >> 3 & 3; now.pending[i] = s >> 5 & 1; now.on[i] = s >> 6 & 1;
		now.held[i] = s >> 7 & 1; now.left[i] = s >> 8 & 1; now.absent[i] = s >> 9 & 1; now.owed[i] = s >> 10 & 3;
		for (int j = 0; j < N; j++) {
			uchar l = b.link[x[i]][x[j]];
			now.aged[i*N+j] = l & 1; now.sent[i*N+j] = l >> 1 & 3; now.bound[i*N+j] = l >> 3 & 3; now.seen[i*N+j] = l >> 5 & 3;
		}
	}
}
}
#endif
