package contract

import (
	"slices"
	"strings"
	"testing"
)

// FuzzList: whatever somebody writes into the ConfigMap, ParseList finds no other words than theirs, reads what String
// returns, and has only versions that clients can read.
func FuzzList(f *testing.F) {
	for _, text := range []string{"", "\n", "12\nhost|10.0.0.1|11211 other|fd00::2|11211\n\r\n", "0\na|b|1\n", "-1\n",
		"9007199254740991\na|b|1\n", "9007199254740992\na|b|1\n", "x\na|b|1", "1", "1\na|b a|b|c|d \u0085 ||"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := ParseList(text)
		if again := ParseList(list.String()); again.Version != list.Version || !slices.Equal(again.Nodes, list.Nodes) {
			t.Errorf("%q became %+v and then %+v", text, list, again)
		}
		if list.Version < 0 || list.Version > MaxVersion || list.Version == 0 && len(list.Nodes) > 0 {
			t.Errorf("%q became %+v", text, list)
		}
		for _, node := range list.Nodes {
			if !strings.Contains(text, node) || len(strings.Split(node, "|")) != 3 {
				t.Errorf("%q has the node %q", text, node)
			}
		}
	})
}
