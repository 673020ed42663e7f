/**
 * Binary trees after GCBench (Ellis, Kovac, Boehm): one that lives, and many that die young, of depths 4 to 16, built from the
 * root and from the leaves, as many calls below `main` as the second argument says. Nothing but small objects, as fast as they
 * can be made.
 */
public class Trees {
    static final class Node {
        Node left, right;
        int i, j;

        Node() {}

        Node(Node left, Node right) {
            this.left = left;
            this.right = right;
        }
    }

    static void populate(int depth, Node node) {
        if (depth <= 0) {
            return;
        }
        node.left = new Node();
        node.right = new Node();
        populate(depth - 1, node.left);
        populate(depth - 1, node.right);
    }

    static Node make(int depth) {
        return depth <= 0 ? new Node() : new Node(make(depth - 1), make(depth - 1));
    }

    static int count(Node node) {
        return node == null ? 0 : 1 + count(node.left) + count(node.right);
    }

    static long trees(int rounds) {
        long nodes = 0;
        for (int round = 0; round < rounds; round++) {
            for (int depth = 4; depth <= 16; depth += 2) {
                for (int turn = 0; turn < 1 << 18 - depth; turn++) {
                    Node root = new Node();
                    populate(depth, root);
                    nodes += (root.left == null ? 0 : 1) + (make(depth).right == null ? 0 : 1);
                }
            }
        }
        return nodes;
    }

    static long deeper(int calls, int rounds) {
        return calls == 0 ? trees(rounds) : deeper(calls - 1, rounds) + 1;
    }

    public static void main(String[] arguments) {
        Node living = make(18);
        double[] array = new double[500_000];
        long nodes = deeper(Integer.parseInt(arguments[1]), Integer.parseInt(arguments[0]));
        System.out.println(nodes + " " + count(living) + " " + array.length);
    }
}
