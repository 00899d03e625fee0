package guard

import "testing"

func BenchmarkSign(b *testing.B) {
	h, key := head1, keyOf("a1")
	for b.Loop() {
		encodeMessages(h, messages[:1], key)
	}
}

func BenchmarkVerify(b *testing.B) {
	raw, key := encodeMessages(head1, messages[:1], keyOf("a1")), PublicKey(keyOf("a1"))
	for b.Loop() {
		if l, err := open(raw, kindMessages); err != nil || !l.by(key) {
			b.Fatal("not taken")
		}
	}
}

// BenchmarkRefuse is the cost of what is not news.
func BenchmarkRefuse(b *testing.B) {
	raw := encodeMessages(head1, messages[:1], keyOf("a1"))
	s := &sender{boot: head1.boot}
	s.got.add(head1.seq)
	for b.Loop() {
		if l, err := open(raw, kindMessages); err != nil || s.refuse(l.head) != errReplayed {
			b.Fatal("taken")
		}
	}
}
