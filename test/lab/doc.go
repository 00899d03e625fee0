// Package lab builds a small internet on one box, for tests and the demo:
// sites with their boxes, BIRD and FRR routers that speak real BGP with them,
// regions with origins, L4 backends, clients, and links with delay that can be
// cut.
//
// It owns everything it makes: network namespaces without names, links, child
// processes, one folder under /tmp, and a janitor process that removes all of
// it when the program that made the lab is killed. It never touches the
// machine's own network, mounts or routing daemons, runs no shell, and never
// skips: what is missing is an error of Preflight. The test binaries under
// test/ and the demo run it, as root.
//
// A test:
//
//	func TestMain(m *testing.M) {
//		lab.Janitor() // first, always
//		os.Exit(m.Run())
//	}
//
//	func TestClientReachesItsSite(t *testing.T) {
//		ctx := t.Context()
//		bin := t.TempDir()
//		if err := lab.Build(ctx, bin, true); err != nil {
//			t.Fatal(err)
//		}
//		l, err := lab.New(ctx, lab.Default())
//		if err != nil {
//			t.Fatal(err)
//		}
//		defer l.Close()
//		if err := l.Start(bin); err != nil {
//			t.Fatal(err)
//		}
//		if err := l.Routers["r-a"].Await(ctx, lab.Prefix4, "a1", "a2"); err != nil {
//			t.Fatal(err, l.Logs(30))
//		}
//		got, err := l.Clients["client-a"].Get(ctx, "https://www.example.net/", lab.Way{})
//		if err != nil || got.Site != "a" || got.Region != "east" {
//			t.Errorf("got %+v, %v; want site a, region east", got, err)
//		}
//	}
package lab
