package edge

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Diff says what changes from old to new, one line for each key, in the order
// of the file: "fleet.services[dns].backends[d1].weight: 100 -> 0". What is in
// a list is called by its name; certificates and routes, where the order
// counts, by their place. Empty if nothing changes.
func Diff(old, new *Config) []string {
	var d differ
	// By reflection, so that no key that is added later can be forgotten.
	d.compare("node", reflect.ValueOf(old.Local), reflect.ValueOf(new.Local))
	d.compare("fleet", reflect.ValueOf(old.Fleet), reflect.ValueOf(new.Fleet))
	return d.lines
}

type differ struct{ lines []string }

func (d *differ) add(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *differ) compare(path string, a, b reflect.Value) {
	switch {
	case ours(a.Type()):
		for i := range a.NumField() {
			d.field(path, a, b, i)
		}
	case a.Kind() == reflect.Slice && ours(a.Type().Elem()):
		d.lists(path, a, b)
	case a.Kind() == reflect.Pointer && ours(a.Type().Elem()):
		d.parts(path, a, b)
	default:
		d.value(path, show(a), show(b))
	}
}

// field compares field i of two structs, of which some are not as the file has
// them.
func (d *differ) field(path string, a, b reflect.Value, i int) {
	name := a.Type().Field(i).Name
	was, is := a.Field(i), b.Field(i)
	switch a.Type().Name() + "." + name {
	case "Service.Proxied": // one key in the file, with TLS
		d.value(path+".proxy", proxyKey(a), proxyKey(b))
	case "Service.VIP": // two keys in the file
		d.vip(path, was, is)
	case "Service.WeightFromCheck":
		d.value(path+".weights", weightsKey(a), weightsKey(b))
	case "Backend.ServerID": // bytes, hex in the file
		d.value(path+".server_id", show(hexOf(was)), show(hexOf(is)))
	case "Probe.Command", "Probe.URLs": // lists in the file; a word may have spaces
		d.value(path+"."+key(name), fmt.Sprintf("%q", splitWords(was.String())), fmt.Sprintf("%q", splitWords(is.String())))
	case "Service.TLS":
	case "Speaker.Own", "Speaker.Resting": // not of its section: fleet.prefixes, and a drain
	case "BFD.MinRx": // as MinTx: one key in the file
	default:
		if name == "Addr" {
			d.address(path, was, is)
			return
		}
		d.compare(path+"."+key(name), was, is)
	}
}

func (d *differ) value(path, a, b string) {
	if a != b {
		d.add("%s: %s -> %s", path, a, b)
	}
}

// vip compares the keys vip and port.
func (d *differ) vip(path string, a, b reflect.Value) {
	old, _ := a.Interface().(netip.AddrPort)
	new, _ := b.Interface().(netip.AddrPort)
	d.value(path+".vip", old.Addr().String(), new.Addr().String())
	d.value(path+".port", portKey(old, "all"), portKey(new, "all"))
}

// address compares the key address, or, in the check of a service, port: there
// the address is that of each backend.
func (d *differ) address(path string, a, b reflect.Value) {
	old, isPort := a.Interface().(netip.AddrPort)
	new, _ := b.Interface().(netip.AddrPort)
	if own := old.Addr().IsUnspecified() || new.Addr().IsUnspecified(); isPort && own {
		d.value(path+".port", portKey(old, "none"), portKey(new, "none"))
		return
	}
	d.value(path+".address", show(a), show(b))
}

// portKey is a port as the file has it; zero is what it writes for 0.
func portKey(at netip.AddrPort, zero string) string {
	if at.Port() == 0 {
		return zero
	}
	return strconv.Itoa(int(at.Port()))
}

// proxyKey is the key proxy of a Service.
func proxyKey(v reflect.Value) string {
	switch s, _ := v.Interface().(Service); {
	case s.TLS:
		return "https"
	case s.Proxied:
		return "http"
	}
	return "none"
}

// weightsKey is the key weights of a Service.
func weightsKey(v reflect.Value) string {
	if s, _ := v.Interface().(Service); s.WeightFromCheck {
		return "check"
	}
	return "config"
}

func hexOf(v reflect.Value) reflect.Value {
	return reflect.ValueOf(hex.EncodeToString([]byte(v.String())))
}

// parts compares two sections that may not be there.
func (d *differ) parts(path string, a, b reflect.Value) {
	switch {
	case a.IsNil() && b.IsNil():
	case a.IsNil():
		d.add("%s: added", path)
	case b.IsNil():
		d.add("%s: removed", path)
	default:
		d.compare(path, a.Elem(), b.Elem())
	}
}

// lists compares two lists of structs by the identity of their entries.
func (d *differ) lists(path string, a, b reflect.Value) {
	before, after := map[string]int{}, map[string]bool{}
	for i := range a.Len() {
		before[identity(a.Index(i), i)] = i
	}
	for i := range b.Len() {
		id := identity(b.Index(i), i)
		after[id] = true
		if j, ok := before[id]; ok {
			d.compare(path+"["+id+"]", a.Index(j), b.Index(i))
			continue
		}
		d.add("%s[%s]: added", path, id)
	}
	for i := range a.Len() {
		if id := identity(a.Index(i), i); !after[id] {
			d.add("%s[%s]: removed", path, id)
		}
	}
}

// ours says whether t is a struct of this package, to be looked into. One that
// has a text of its own is a value.
func ours(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[Config]().PkgPath() && !t.Implements(reflect.TypeFor[fmt.Stringer]())
}

// identity is what names an entry of a list.
func identity(v reflect.Value, i int) string {
	for _, field := range []string{"ID", "Net", "On", "Region"} {
		if f := v.FieldByName(field); f.IsValid() {
			return fmt.Sprint(f.Interface())
		}
	}
	return strconv.Itoa(i)
}

func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return short(x)
	case int64: // of this type there are only sizes
		return bytesText(x)
	case interface{ IsValid() bool }:
		if !x.IsValid() {
			return "none"
		}
	}
	if s := fmt.Sprint(v.Interface()); s != "" {
		return s
	}
	return `""`
}

// key is the name that a field has in the file.
func key(field string) string {
	switch field {
	case "Speaker":
		return "bgp"
	case "Addr":
		return "address"
	case "LocalAddr":
		return "local_address"
	case "Memory":
		return "memory_limit"
	case "Blocklist":
		return "blocklist_file"
	case "Large":
		return "large_communities"
	case "Net":
		return "prefix"
	case "Name": // of a probe; what has a name of its own is an ID
		return "query"
	case "MinFreeBytes":
		return "min_free"
	case "MinTx":
		return "interval"
	case "URLs":
		return "urls"
	case "Addr4", "Addr6":
		return "address" + field[len(field)-1:]
	}
	var b strings.Builder
	runes := []rune(field)
	for i, c := range runes {
		// A word begins at a capital that follows or precedes a small letter.
		if unicode.IsUpper(c) && i > 0 && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
