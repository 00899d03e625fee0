package maglev

import (
	"fmt"
	"testing"

	peer "github.com/kkdai/maglev"
)

func BenchmarkBuild(b *testing.B) {
	for _, mix := range mixes {
		for _, n := range []int{10, 100, 1000, 4000} {
			b.Run(fmt.Sprintf("%s/%d/ring", mix.name, n), func(b *testing.B) {
				backends := names(n, mix.weight)
				b.ReportAllocs()
				for b.Loop() {
					build(b, seed, backends)
				}
			})
			// The peer knows no weights, and holds all permutations at once: of
			// 4000 backends 2 GB.
			if mix.name != "equal" || n > 1000 {
				continue
			}
			b.Run(fmt.Sprintf("%s/%d/peer", mix.name, n), func(b *testing.B) {
				var list []string
				for _, x := range names(n, one) {
					list = append(list, x.Name)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := peer.NewMaglev(list, Size); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
